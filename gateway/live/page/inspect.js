// What is under the pointer, or under the cursor that the arrow keys move, in words.

import { gapText } from "./cells.js";
import { clock } from "./overlay.js";

const NAMES = ["initiation: the whole prompt", "a chunk of the prompt", "increment: one token", "recomputation"];
const REASONS = { stop: "ended by itself", length: "ended at its length", preempted: "preempted" };

/** Let pointer and keys inspect `chart`. Returns { move(columns, rows), clear() } of the cursor. */
export function inspectable(chart) {
  const canvas = chart.overlay;
  const box = chart.holder.appendChild(document.createElement("div"));
  box.className = "tip";
  box.setAttribute("role", "status");
  box.hidden = true;
  const point = (pointed, x, y) => {
    chart.pointed = pointed;
    const lines = pointed ? describe(chart, pointed) : [];
    box.hidden = lines.length === 0;
    if (box.hidden) return;
    box.replaceChildren(...lines.map((line, index) => entry(line, index)));
    place(box, chart, x, y);
  };
  canvas.addEventListener("pointermove", (event) => {
    point(chart.at(event.offsetX, event.offsetY), event.offsetX, event.offsetY);
  });
  const clear = () => point(null);
  canvas.addEventListener("pointerleave", clear);
  canvas.addEventListener("blur", clear);
  const move = (columns, rows) => {
    const { timeline } = chart;
    const newest = Math.min(chart.after(chart.right - 1), timeline.end - 1);
    const { sequence, slot } = chart.pointed ?? { sequence: newest, slot: 0 };
    const at = {
      sequence: Math.min(Math.max(sequence + columns, timeline.first), timeline.end - 1),
      slot: Math.min(Math.max(slot + rows, 0), chart.rows - 1),
    };
    const item = timeline.item(at.sequence);
    if (!item) return;
    const x = chart.left(item) - chart.right + chart.width;
    if (x < 0) chart.pan(x - chart.width / 3);
    if (x > chart.width) chart.pan(x - chart.width + chart.width / 3);
    point(at, chart.left(item) - chart.right + chart.width, (at.slot + 1) * chart.row);
  };
  return { move, clear };
}

function entry(text, index) {
  const line = document.createElement(index ? "div" : "strong");
  line.textContent = text;
  return line;
}

function place(box, chart, x, y) {
  const width = box.offsetWidth;
  const left = x + 16 + width > chart.holder.clientWidth ? x - width - 12 : x + 16;
  box.style.left = `${Math.max(left, 0)}px`;
  box.style.top = `${y + 14}px`;
}

function describe(chart, { sequence, slot }) {
  const item = chart.timeline.item(sequence);
  if (!item) return [];
  const when = chart.scale ? `${(item.at / 1000).toFixed(3)} s` : clock(item.at, 3);
  if (item.gap) return [gapText(item), `from ${when}`, ...(item.taken ? [`epoch ${item.epoch}`] : [])];
  const iteration = `iteration ${item.step} at ${when}, ${item.ms.toFixed(1)} ms`;
  const batch = `${item.cells.length / 3} requests, ${item.tokens} tokens, ${item.blocks} KV blocks`;
  const cell = chart.timeline.cell(item, slot);
  if (!cell?.request) return [iteration, batch];
  const { request } = cell;
  const lines = [`request ${request.n}`, NAMES[cell.kind]];
  const cached = request.cached ? `, ${request.cached} of them cached` : "";
  if (request.prompt !== undefined) lines.push(`prompt of ${request.prompt} tokens${cached}`);
  const number = cell.number ? `, token ${cell.number} of the answer` : "";
  lines.push(`${cell.tokens} computed${number}`);
  const draft = item.drafted.get(request.uid);
  if (draft) lines.push(`${draft.right} of ${draft.guesses} drafted tokens right`);
  if (request.resumed) lines.push(`taken over with ${request.resumed} tokens`);
  for (const [at, reason] of request.ends ?? []) if (at === sequence) lines.push(REASONS[reason] ?? reason);
  if (request.class) lines.push(`class ${request.class}`);
  if (request.id) lines.push(request.id);
  return [...lines, iteration, batch];
}
