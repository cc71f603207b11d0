// Reads recordings: files of anybody, which may be broken or larger than a page can draw.

import { Timeline } from "./timeline.js";

const MOST_ROWS = 1024; // browsers draw no canvas that is much higher
const LATEST = 8.64e15; // ms, of a Date

/** The timeline of a recording, whose times begin at 0. Throws Error for a text that is none. */
export function parse(text) {
  const timeline = new Timeline({ gaps: false });
  const reading = { begin: null, end: -Infinity, engine: null };
  text.split("\n").forEach((line, number) => {
    if (!line.trim()) return;
    try {
      const { event, data } = JSON.parse(line);
      if (event === "iterations") add(timeline, data, reading);
    } catch (error) {
      throw new Error(`line ${number + 1}: ${error.message}`);
    }
  });
  if (!timeline.last) throw new Error("it has no iterations");
  return timeline;
}

function add(timeline, { engine, epoch, iterations, requests }, reading) {
  reading.engine ??= engine;
  if (engine !== reading.engine) throw new Error(`iterations of the engines ${reading.engine} and ${engine}; one can be shown`);
  iterations.forEach((iteration, index) => {
    check(iteration, reading.end);
    reading.begin ??= iteration.at;
    reading.end = iteration.at;
    const shifted = { ...iteration, at: iteration.at - reading.begin };
    timeline.add({ epoch, iterations: [shifted], requests: index ? {} : requests });
    if (timeline.rows > MOST_ROWS) throw new Error(`more than ${MOST_ROWS} requests at a time cannot be shown`);
  });
}

function check({ at, ms, requests }, before) {
  const known = Math.abs(at) <= LATEST && ms >= 0 && ms <= LATEST && typeof at === "number" && typeof ms === "number";
  if (!known) throw new Error(`an iteration at ${at} ms that takes ${ms} ms`);
  if (at < before) throw new Error(`an iteration at ${at} ms after one at ${before} ms`);
  if (requests.length > MOST_ROWS) throw new Error(`an iteration of ${requests.length} requests; the limit is ${MOST_ROWS}`);
}

/** For each item, the output tokens and ended requests up to it. */
export function totals(timeline) {
  let [tokens, ended] = [0, 0];
  const ends = new Map();
  for (const request of timeline.requests.values()) {
    for (const [at, reason] of request.ends ?? []) {
      if (reason !== "preempted") ends.set(at, (ends.get(at) ?? 0) + 1);
    }
  }
  const numbers = new Map();
  return timeline.items.map((item, index) => {
    for (let i = 0; i < item.cells.length; i += 3) {
      tokens += item.cells[i + 2] - (numbers.get(item.cells[i]) ?? 0);
      numbers.set(item.cells[i], item.cells[i + 2]);
    }
    ended += ends.get(timeline.first + index) ?? 0;
    return { tokens, ended };
  });
}
