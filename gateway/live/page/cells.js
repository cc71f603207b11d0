// How one item of a timeline is drawn: the cells of an iteration, its bar of tokens, or a gap.

import { CHUNK, INCREMENT, INITIATION, WORDS } from "./timeline.js";

export const GAP_WIDTH = 30; // CSS pixels
export const BARS = 36; // the height of the bars of tokens per iteration
const MOST_TOKENS = 1024; // the bar of an iteration with as many is full; the scale is logarithmic

/** Draw `item` in the box from `x` on; `place` has the heights: { row, rows }. */
export function drawItem(context, timeline, item, sequence, x, width, place, palette) {
  if (item.gap) drawGap(context, item, x, width, place, palette);
  else drawIteration(context, timeline, item, sequence, x, width, place, palette);
}

function drawIteration(context, timeline, item, sequence, x, width, place, palette) {
  const inner = width >= 3 ? width - 1 : width;
  const { cells } = item;
  for (let i = 0; i < cells.length; i += WORDS) {
    const request = timeline.requests.get(cells[i]);
    if (!request) continue;
    const slot = cells[i + 1] >>> 20;
    drawCell(context, request, (cells[i + 1] >>> 17) & 7, x, slot * place.row, inner, place.row, palette);
    const end = request.ends?.find(([at]) => at === sequence);
    if (end) drawEnd(context, end[1], x, slot * place.row, inner, place.row, palette);
  }
  drawBar(context, item, x, inner, place, palette);
}

function drawCell(context, request, kind, x, y, width, row, palette) {
  const colour = request.colour;
  const pad = row >= 8 ? 1 : 0.5;
  const hue = palette.hue(colour);
  context.fillStyle = hue;
  if (kind === INCREMENT) {
    const height = Math.max(row * 0.46, 2);
    const top = y + (row - height) / 2;
    context.fillRect(x, top, width, height);
    const pattern = palette.pattern(colour);
    if (pattern === 0 || row < 7) return;
    context.fillStyle = palette.surface;
    if (pattern === 1) context.fillRect(x, y + row / 2 - 0.75, width, 1.5);
    else context.fillRect(x, top, Math.max(width * 0.4, 1), height);
  } else if (kind === INITIATION) {
    context.fillRect(x, y + pad, width, row - 2 * pad);
  } else if (kind === CHUNK) {
    context.fillStyle = palette.stripes(colour);
    context.fillRect(x, y + pad, width, row - 2 * pad);
    context.fillStyle = hue;
    context.fillRect(x, y + pad, width, 1);
    context.fillRect(x, y + row - pad - 1, width, 1);
  } else {
    context.globalAlpha = 0.3;
    context.fillRect(x, y + pad, width, row - 2 * pad);
    context.globalAlpha = 1;
    context.strokeStyle = hue;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + pad + 0.5, Math.max(width - 1, 1), row - 2 * pad - 1);
  }
}

/** The mark behind the last token of a request: a dot, a bar at its length, a triangle if it was preempted. */
function drawEnd(context, reason, x, y, width, row, palette) {
  const right = x + width;
  const middle = y + row / 2;
  const size = Math.min(row * 0.25, 3.2);
  context.fillStyle = palette.ink;
  context.beginPath();
  if (reason === "stop") {
    context.arc(right - size, middle, size, 0, 2 * Math.PI);
  } else if (reason === "preempted") {
    context.moveTo(right - 2 * size, middle - size);
    context.lineTo(right, middle - size);
    context.lineTo(right - size, middle + size);
  } else {
    context.rect(right - 1.5, middle - size * 1.3, 2, size * 2.6);
  }
  context.fill();
}

/** Tokens of the iteration: of increments below, of prompts above. */
function drawBar(context, item, x, width, { row, rows }, palette) {
  const bottom = row * rows + BARS;
  const height = (tokens) => Math.min(Math.log1p(tokens) / Math.log1p(MOST_TOKENS), 1) * (BARS - 6);
  const all = height(item.tokens);
  const increments = height(item.tokens - item.prompts);
  context.fillStyle = palette.accent;
  context.fillRect(x, bottom - all, width, all - increments);
  context.fillStyle = palette.stripe;
  context.fillRect(x, bottom - increments, width, increments);
}

function drawGap(context, item, x, width, { row, rows }, palette) {
  const height = row * rows + BARS;
  const colour = item.busy ? palette.alarm : palette.muted;
  context.fillStyle = palette.hatch;
  context.fillRect(x + 2, 0, width - 5, height);
  context.fillStyle = colour;
  context.fillRect(x + 2, 0, item.busy ? 2 : 1, height);
  if (width < 16) return;
  context.save();
  context.translate(x + width / 2 + 1, height / 2);
  context.rotate(-Math.PI / 2);
  context.font = `600 11px ${palette.font}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  const text = gapText(item);
  context.fillStyle = palette.surface;
  const wide = context.measureText(text).width + 10;
  context.fillRect(-wide / 2, -8, wide, 16);
  context.fillStyle = colour;
  context.fillText(text, 0, 0);
  context.restore();
}

export function gapText(item) {
  const seconds = `${(item.ms / 1000).toFixed(item.ms < 10_000 ? 1 : 0)} s`;
  if (item.unseen) return `not seen ${seconds}`;
  if (item.taken) return `replaced · ${seconds}`;
  return item.busy ? `paused ${seconds}` : `idle ${seconds}`;
}
