// The figures beside the charts: what waits and runs, times, and each engine.

const HISTORY = 120; // states, one a second
const element = (id) => document.getElementById(id);

export class Figures {
  constructor() {
    this._states = [];
  }

  /** Show a `state` event; `iterations`: what `ratesOf` returns. */
  show(state, iterations) {
    const living = state.engines.filter(({ alive }) => alive);
    const names = living.map(({ name }) => name);
    const used = sum(living, "used");
    const blocks = sum(living.filter(({ sleep }) => !sleep), "blocks"); // an engine that sleeps gave its memory back
    const values = {
      running: state.running,
      waiting: state.waiting,
      "tokens-per-second": state.tokens_per_second,
      ttft: state.ttft_ms?.[0],
      "ttft-99": state.ttft_ms?.[1],
      gap: state.gap_ms?.[0],
      "gap-99": state.gap_ms?.[1],
      iterations: iterations.rate,
      "tokens-per-iteration": iterations.tokens,
      drafts: iterations.right,
      "drafts-gain": iterations.gain,
      kv: blocks ? (100 * used) / blocks : null,
    };
    this._states.push(values);
    if (this._states.length > HISTORY) this._states.shift();
    for (const [name, value] of Object.entries(values)) this._figure(name, value);
    element("kv-blocks").textContent = `${used.toLocaleString("en")} of ${blocks.toLocaleString("en")} blocks`;
    element("gateways").textContent = plural(state.gateways, "gateway");
    element("served").textContent = state.model ?? "";
    const models = state.models ?? []; // none of a server with one model
    const modelOf = new Map(models.flatMap((one) => one.engines.map((name) => [name, one.name])));
    const numberOf = (one) => labelOf(one.name, one.alive ? names : [...names, one.name]);
    const labelled = (one) =>
      engine(one, modelOf.has(one.name) ? `${one.name.split("/").pop()} of ${modelOf.get(one.name)}` : numberOf(one));
    const enginesOf = (own) => state.engines.filter((one) => own.engines.includes(one.name)).map(labelled);
    const rows = models.flatMap((one) => [model(one), ...enginesOf(one)]);
    element("engines").replaceChildren(...(models.length ? rows : state.engines.map(labelled)));
  }

  _figure(name, value) {
    const shown = element(`figure-${name}`);
    if (shown) shown.textContent = text(value);
    const line = element(`line-${name}`);
    if (!line) return;
    const values = this._states.map((state) => state[name] ?? 0);
    const most = Math.max(...values, 1e-9);
    const step = 120 / Math.max(values.length - 1, 1); // the drawing is 120 by 24
    const points = values.map((value, i) => `${(i * step).toFixed(1)},${(22 - (20 * value) / most).toFixed(1)}`);
    line.setAttribute("points", points.join(" "));
  }
}

/** Over the two seconds before `now`, in ms: iterations a second, tokens of an iteration, the share of drafted tokens that
 * were right, in percent, and the tokens that an increment has because of them. */
export function ratesOf(timelines, now) {
  let [count, tokens, increments, guesses, right] = [0, 0, 0, 0, 0];
  for (const { items } of timelines) {
    for (let i = items.length - 1; i >= 0 && items[i].at > now - 2000; i--) {
      const item = items[i];
      if (item.gap) continue;
      count += 1;
      tokens += item.tokens;
      increments += item.decoded;
      for (const draft of item.drafted.values()) {
        guesses += draft.guesses;
        right += draft.right;
      }
    }
  }
  const drafts = guesses ? { right: (100 * right) / guesses, gain: 1 + right / increments } : {};
  return { rate: count / 2, tokens: count ? tokens / count : 0, ...drafts };
}

/** The row of one of several models. */
function model({ name, running, waiting }) {
  const item = document.createElement("li");
  const head = item.appendChild(document.createElement("div"));
  head.className = "engine-head";
  add(head, "strong", "", name);
  add(head, "span", "quiet", `${running} running, ${waiting} waiting`);
  return item;
}

function engine(one, label) {
  const { name, ready, sleep, failure, alive, spare, spare_scheduler: second, epoch, blocks, used, batch } = one;
  const item = document.createElement("li");
  const state = !alive || failure ? "down" : ready ? (sleep ? "asleep" : "ready") : "starting";
  const head = item.appendChild(document.createElement("div"));
  head.className = "engine-head";
  add(head, "span", `state-${state}`, alive ? (failure && "failed") || (ready && sleep) || state : state);
  add(head, "strong", "", `Engine ${label}`).title = name;
  if (epoch) add(head, "span", "quiet", `epoch …${epoch.slice(-4)}`).title = epoch;
  if (!alive) {
    add(item, "div", "quiet", "no scheduler runs it");
    return item;
  }
  if (failure || (ready && sleep)) {
    add(item, "div", "quiet", failure || "a request wakes it up");
    return item;
  }
  const bar = item.appendChild(document.createElement("div"));
  bar.className = "bar";
  const full = bar.appendChild(document.createElement("div"));
  full.style.width = `${blocks ? (100 * used) / blocks : 0}%`;
  const kept = [spare && "spare engine", second && "spare scheduler"].filter(Boolean);
  add(item, "div", "quiet", `batch of ${batch} · ${kept.length ? kept.join(", ") : "no spare is ready"}`);
  return item;
}

function add(parent, tag, kind, words) {
  const child = parent.appendChild(document.createElement(tag));
  if (kind) child.className = kind;
  child.textContent = words;
  return child;
}

/** The shortest name of an engine that no other has: `0`, or `cluster/0`. */
export function labelOf(name, names) {
  const last = name.split("/").pop();
  return names.filter((other) => other.split("/").pop() === last).length > 1 ? name : last;
}

function sum(engines, name) {
  return engines.reduce((total, one) => total + (one[name] ?? 0), 0);
}

function text(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toFixed(1);
}

function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}
