// One streamed answer over any number of connections. The same rules as in services/client/resuming.py.

import { Refused, call, events, sleep } from "./api.js";

const PATIENCE = 120_000; // ms without a sign of life after which it gives up
const SILENCE = 60_000; // ms without a byte after which a connection counts as dead
const PAUSE = 1500; // ms between two events of a connection that are told, such as after the death of an engine
const [FIRST_PAUSE, LONGEST_PAUSE] = [50, 2000]; // ms

/** The state of an answer. It is plain JSON, so that a page that is loaded again can go on with it. */
export function newAnswer(body) {
  const key = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0"));
  return {
    body,
    key: key.join(""), // the Idempotency-Key
    text: "",
    before: "", // what came before the server forgot the request, and comes again
    lastId: "", // of the last event
    request: "", // the server's name of it
    stopping: false, // whether the user has stopped it, and the server has not yet
    tokens: 0,
    prompt: null, // tokens
    sent: Date.now(),
    first: null, // when the first token came
    last: null,
    away: false, // whether it asks for a connection again
    breaks: [], // { tokens, ms, kind }: the stream went on after `tokens` tokens and `ms`; see CAUSES in chat.js
    reason: null, // why it ended
    error: null,
  };
}

export function isOpen(answer) {
  return answer.reason === null && answer.error === null;
}

/** Follow `answer` to its end; `changed()` after each change. `reloaded`: this page has not begun it. */
export async function follow(answer, changed, signal, reloaded = false) {
  let [pause, alive] = [FIRST_PAUSE, Date.now()];
  const resuming = { since: reloaded ? (answer.last ?? answer.sent) : null, reloaded };
  while (isOpen(answer) && !signal.aborted) {
    const before = answer.lastId;
    let wait = 0;
    try {
      await connect(answer, changed, signal, resuming);
    } catch (error) {
      if (signal.aborted) break;
      wait = refusal(answer, error);
    }
    if (!isOpen(answer) || signal.aborted) break;
    if (answer.lastId !== before) [pause, alive] = [FIRST_PAUSE, Date.now()];
    if (Date.now() - alive > PATIENCE) answer.error = "The server does not answer.";
    resuming.since ??= Date.now();
    answer.away = true;
    changed();
    await sleep(Math.max(wait, pause * (0.5 + Math.random() / 2)), signal);
    pause = Math.min(2 * pause, LONGEST_PAUSE);
  }
  changed();
}

async function connect(answer, changed, signal, resuming) {
  const headers = { "Content-Type": "application/json", "Idempotency-Key": answer.key };
  if (answer.lastId) headers["Last-Event-ID"] = answer.lastId;
  const body = JSON.stringify(answer.body);
  const response = await call("v1/chat/completions", { method: "POST", headers, body, signal });
  answer.request = response.headers.get("Orca-Request");
  changed();
  for await (const { data, id } of events(response, SILENCE)) {
    if (signal.aborted) return;
    if (data === "[DONE]") {
      answer.reason ??= "stop";
      return;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) {
      fail(answer, chunk.error.message ?? "The request failed.", chunk.error.code);
      return;
    }
    if (resuming.since !== null && (answer.tokens || resuming.reloaded)) {
      const kind = resuming.reloaded ? "reloaded" : "broken";
      answer.breaks.push({ tokens: answer.tokens, ms: Date.now() - resuming.since, kind });
      answer.last = Date.now();
    }
    [resuming.since, resuming.reloaded, answer.away] = [null, false, false];
    take(answer, chunk, id);
    changed();
  }
}

function take(answer, chunk, id) {
  if (chunk.usage) {
    answer.prompt = chunk.usage.prompt_tokens;
    answer.tokens = chunk.usage.completion_tokens;
  }
  const [choice] = chunk.choices ?? [];
  const { content, reasoning_content: thought } = choice?.delta ?? {};
  if (content || thought) {
    answer.text += content ?? "";
    answer.first ??= Date.now();
    const pause = Date.now() - (answer.last ?? Infinity);
    if (pause > PAUSE) answer.breaks.push({ tokens: answer.tokens, ms: pause, kind: "paused" });
    answer.last = Date.now();
    answer.tokens = Math.max(answer.tokens, Number(id.split(":").pop().split(".")[0]) || 0);
  }
  if (choice?.finish_reason) answer.ended = choice.finish_reason;
  if (id) answer.lastId = id;
  if (chunk.usage) answer.reason = answer.ended ?? "stop";
}

/** How long to wait in ms before the next connection; sets `error` if another one is useless. */
function refusal(answer, error) {
  if (!(error instanceof Refused)) return 0; // no answer, or the connection broke
  if (error.code === "request_not_found" && answer.lastId) {
    answer.before = shown(answer); // the same POST without an id brings the same tokens from the first one on
    answer.text = answer.lastId = "";
    return 0;
  }
  const passing = error.retryAfter !== null || error.status >= 500 || (error.status === 404 && !error.code);
  if (!passing || error.code === "generation_failed") {
    fail(answer, error.message, error.code);
    answer.status = error.status;
  }
  return Math.min(error.retryAfter ?? 0, 10) * 1000;
}

/** End `answer` with an error, or as stopped if its request was cancelled. */
function fail(answer, message, code) {
  if (code === "request_cancelled") answer.reason = "stopped";
  else answer.error = message;
}

/** Ask the server to cancel `answer` until it knows of it. The stream says then that it is stopped, or how it ended before. */
export async function stop(answer) {
  answer.stopping = true;
  for (let known = false; !known && isOpen(answer); await sleep(LONGEST_PAUSE / 10)) {
    if (!answer.request) continue;
    known = await call(`v1/streams/${answer.request}`, { method: "DELETE" }).then(
      () => true,
      (error) => error instanceof Refused && error.status < 500,
    );
  }
}

export function shown(answer) {
  return answer.text.length < answer.before.length ? answer.before : answer.text;
}
