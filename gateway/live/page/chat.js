// The chat: a conversation that is kept in this tab, and goes on by itself after a broken connection or a reload.

import { call } from "./api.js";
import { follow, isOpen, newAnswer, shown } from "./answer.js";

const KEPT = "orca.chat";
const CAUSES = {
  broken: "connection broke, resumed after",
  reloaded: "page reloaded, resumed after",
  paused: "paused for",
};
const element = (id) => document.getElementById(id);

export class Chat {
  /** `refused(status)`: the server refused a request. */
  constructor(refused) {
    this._refused = refused;
    this._turns = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]"); // { role, content } and { role, answer }
    this._running = null;
    this._views = new Map();
    this._frame = 0;
    element("composer").addEventListener("submit", (event) => (event.preventDefault(), this._send()));
    element("text").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this._send();
    });
    element("stop").addEventListener("click", () => this._stop());
    element("clear").addEventListener("click", () => this._clear());
    for (const button of document.querySelectorAll("[data-prompt]")) {
      button.addEventListener("click", () => this._send(button.dataset.prompt));
    }
    addEventListener("pagehide", () => this._keep());
    this._draw();
    const open = this._turns.at(-1)?.answer;
    if (open && isOpen(open)) this._follow(open, true);
  }

  /** Fill the list of models. */
  async models() {
    try {
      const { data } = await (await call("v1/models")).json();
      element("model").replaceChildren(...data.map(({ id }) => new Option(id, id)));
    } catch (error) {
      this._refused(error.status);
    }
  }

  _send(text = element("text").value) {
    if (this._running || !text.trim()) return;
    const model = element("model").value;
    this._turns.push({ role: "user", content: text.trim() });
    const messages = this._turns.map(({ role, content, answer }) => ({ role, content: content ?? shown(answer) }));
    const body = { ...(model && { model }), messages: messages.filter(({ content }) => content), stream: true };
    body.stream_options = { include_usage: true };
    body.max_tokens = Number(element("max-tokens").value) || undefined;
    body.temperature = Number(element("temperature").value);
    const answer = newAnswer(body);
    this._turns.push({ role: "assistant", answer });
    element("text").value = "";
    this._draw();
    this._follow(answer, false);
  }

  async _follow(answer, reloaded) {
    const run = (this._running = new AbortController());
    this._buttons();
    let kept = 0;
    await follow(
      answer,
      () => {
        this._frame ||= requestAnimationFrame(() => this._show(answer));
        if (Date.now() - kept < 200) return;
        kept = Date.now();
        this._keep();
      },
      run.signal,
      reloaded,
    );
    if (run.stopped) await this._cancelled(run, answer);
    if (this._running === run) this._running = null;
    delete answer.body; // nothing asks for it again
    this._keep();
    this._show(answer);
    this._buttons();
    if (answer.error) this._refused(answer.status);
  }

  _stop() {
    const run = this._running;
    if (!run || run.stopped) return;
    const { answer } = this._turns.at(-1) ?? {};
    const [request] = answer?.lastId.split(":") ?? [];
    run.stopped = request ? call(`v1/streams/${request}`, { method: "DELETE" }) : Promise.resolve();
    run.stopped.catch(() => {}); // `_cancelled` says it
    run.abort();
  }

  /** Say that the answer is stopped as soon as the server has cancelled it; or that it goes on there. */
  async _cancelled(run, answer) {
    try {
      await run.stopped;
      answer.reason ??= "stopped";
    } catch ({ status }) {
      // the server has forgotten it, or it had ended before
      if (status === 404 || status === 409) answer.reason ??= "stopped";
      else answer.reason ??= "unstopped";
    }
  }

  _clear() {
    this._stop();
    this._running = null;
    this._turns = [];
    this._keep();
    this._draw();
    this._buttons();
    element("text").focus();
  }

  _keep() {
    sessionStorage.setItem(KEPT, JSON.stringify(this._turns));
  }

  _buttons() {
    element("stop").hidden = !this._running;
    element("send").hidden = Boolean(this._running);
    element("turns").setAttribute("aria-busy", String(Boolean(this._running)));
  }

  _draw() {
    this._views.clear();
    element("turns").replaceChildren(...this._turns.map((turn) => this._turn(turn)));
    element("chat-empty").hidden = this._turns.length > 0;
    for (const answer of this._views.keys()) this._show(answer);
    element("turns").scrollTop = element("turns").scrollHeight;
  }

  _turn({ role, content, answer }) {
    const item = document.createElement("li");
    item.className = role;
    const text = item.appendChild(document.createElement("div"));
    text.className = "text";
    text.textContent = content ?? "";
    if (answer) {
      const facts = item.appendChild(document.createElement("div"));
      facts.className = "facts";
      this._views.set(answer, { text, facts });
    }
    return item;
  }

  _show(answer) {
    this._frame = 0;
    const view = this._views.get(answer);
    if (!view) return;
    const turns = element("turns");
    const low = turns.scrollHeight - turns.scrollTop - turns.clientHeight < 60;
    view.text.textContent = shown(answer);
    view.text.classList.toggle("writing", isOpen(answer));
    view.facts.replaceChildren(...facts(answer));
    if (low) turns.scrollTop = turns.scrollHeight;
  }
}

/** What is known of an answer, as elements. */
function facts(answer) {
  const parts = [];
  const add = (text, kind = "fact") => {
    const part = document.createElement("span");
    part.className = kind;
    part.textContent = text;
    parts.push(part);
  };
  if (answer.first === null && !answer.away && isOpen(answer)) add("waits for the first token");
  if (answer.first !== null) add(`first token after ${seconds(answer.first - answer.sent)}`);
  if (answer.tokens) add(`${answer.tokens} tokens`);
  if (answer.tokens > 1 && answer.last > answer.first) {
    add(`${((1000 * (answer.tokens - 1)) / (answer.last - answer.first)).toFixed(1)} tokens/s`);
  }
  for (const { tokens, ms, kind } of answer.breaks) add(`${CAUSES[kind]} ${seconds(ms)} at token ${tokens}`, "resumed");
  if (answer.away && isOpen(answer)) add("no answer from the server, asking again");
  if (answer.reason === "length") add("ended at its length");
  if (answer.reason === "stopped") add("stopped");
  if (answer.reason === "unstopped") add("not stopped: the server did not answer, it may go on there", "error");
  if (answer.error) add(answer.error, "error");
  return parts;
}

function seconds(ms) {
  return ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(1)} s`;
}
