// What is drawn over a chart at each change: the axis of time, who has each slot, and the request that is inspected.

import { BARS } from "./cells.js";
import { WORDS } from "./timeline.js";

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300]; // seconds between two labels
const LABEL = 64; // CSS pixels that a label of the axis needs

export function drawOverlay(chart) {
  const context = chart.overlay.getContext("2d");
  const { palette } = chart;
  const ratio = chart.overlay.width / chart.holder.clientWidth || 1;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, chart.overlay.width, chart.overlay.height);
  context.font = `11px ${palette.font}`;
  context.textBaseline = "middle";
  drawAxis(context, chart);
  if (chart.following || chart.scale) drawOwners(context, chart);
  if (chart.pointed) drawPointed(context, chart);
}

function drawAxis(context, chart) {
  const { timeline, palette } = chart;
  const top = chart.rows * chart.row + BARS;
  context.fillStyle = palette.line;
  context.fillRect(0, top, chart.width, 1);
  const origin = chart.right - chart.width;
  if (chart.scale) return drawSeconds(context, chart, origin, top);
  const visible = timeline.seconds.filter((sequence) => {
    const item = timeline.item(sequence);
    const x = item ? chart.left(item) - origin : -1;
    return x >= 0 && x <= chart.width;
  });
  if (visible.length === 0) return undefined;
  const step = STEPS.find((seconds) => (chart.width / visible.length) * seconds >= LABEL) ?? 600;
  let free = 0;
  for (const sequence of visible) {
    const item = timeline.item(sequence);
    const x = chart.left(item) - origin;
    const second = Math.floor(item.at / 1000);
    context.fillStyle = palette.muted;
    context.fillRect(x, top, 1, second % step ? 3 : 6);
    if (second % step || x < free || x > chart.width - LABEL * 0.6) continue;
    context.fillText(clock(item.at), x + 4, top + 12);
    free = x + LABEL;
  }
  return undefined;
}

/** The axis of a recording, and the line of its clock. */
function drawSeconds(context, chart, origin, top) {
  const { palette } = chart;
  const second = 1000 * chart.scale;
  const step = STEPS.find((seconds) => second * seconds >= LABEL) ?? 600 * Math.ceil(LABEL / (600 * second));
  const tick = second < 3 ? step : 1; // seconds
  for (let at = Math.max(Math.ceil(origin / second / tick), 0) * tick; at * second - origin < chart.width; at += tick) {
    const x = at * second - origin;
    context.fillStyle = palette.muted;
    context.fillRect(x, top, 1, at % step ? 3 : 6);
    if (at % step === 0 && x < chart.width - 24) context.fillText(`${at} s`, x + 4, top + 12);
  }
  context.fillStyle = palette.accent;
  context.fillRect(chart.until * chart.scale - origin - 1, 0, 2, top);
}

export function clock(at, fraction = 0) {
  const date = new Date(at);
  const text = [date.getHours(), date.getMinutes(), date.getSeconds()].map((n) => String(n).padStart(2, "0")).join(":");
  return fraction ? `${text}.${String(Math.floor(date.getMilliseconds())).padStart(3, "0")}` : text;
}

function drawOwners(context, chart) {
  if (chart.row < 8 || chart.scale) return;
  const { timeline, palette } = chart;
  timeline.slots.forEach((uid, slot) => {
    const request = timeline.requests.get(uid);
    if (!request) return;
    const y = (slot + 0.5) * chart.row;
    context.fillStyle = palette.hue(request.colour);
    context.fillRect(chart.width + 4, y - 3, 6, 6);
    context.fillStyle = palette.muted;
    context.fillText(String(request.n), chart.width + 14, y + 0.5);
  });
}

/** A frame around each visible cell of the request that is inspected, and a line at the iteration. */
function drawPointed(context, chart) {
  const { timeline, palette } = chart;
  const item = timeline.item(chart.pointed.sequence);
  if (!item) return;
  const origin = chart.right - chart.width;
  const x = chart.left(item) - origin;
  context.globalAlpha = 0.12;
  context.fillStyle = palette.ink;
  context.fillRect(x, 0, Math.max(chart.widthOf(item), 2), chart.rows * chart.row + BARS);
  context.globalAlpha = 1;
  const uid = timeline.cell(item, chart.pointed.slot)?.request?.uid;
  if (!uid) return;
  context.strokeStyle = palette.ink;
  context.lineWidth = 1;
  for (const { slot, from, to } of runs(chart, uid, origin)) {
    context.strokeRect(from + 0.5, slot * chart.row + 0.5, to - from - 1, chart.row - 1);
  }
}

/** The visible stretches of a request, as { slot, from, to } in CSS pixels of the picture. */
function runs(chart, uid, origin) {
  const { timeline } = chart;
  const found = [];
  for (let sequence = chart.after(origin); sequence < timeline.end; sequence++) {
    const item = timeline.item(sequence);
    const from = chart.left(item) - origin;
    if (from > chart.width) break;
    for (let i = 0; i < (item.cells?.length ?? 0); i += WORDS) {
      if (item.cells[i] !== uid) continue;
      const slot = item.cells[i + 1] >>> 20;
      const to = Math.min(from + chart.widthOf(item), chart.width);
      const last = found[found.length - 1];
      if (last && last.slot === slot && from - last.to < 2) last.to = to;
      else found.push({ slot, from: Math.max(from, 0), to });
    }
  }
  return found;
}
