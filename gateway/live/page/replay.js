// Two recordings side by side on one clock, such as request-level and iteration-level scheduling of the same requests.

import { Chart } from "./chart.js";
import { inspectable } from "./inspect.js";
import { parse, totals } from "./recording.js";

const ITERATION = 5; // CSS pixels of a typical iteration
const MAX_BYTES = 64 * 1024 * 1024;
const BUILT_IN = ["request_level.jsonl", "iteration_level.jsonl"];
const element = (id) => document.getElementById(id);

export class Replay {
  constructor() {
    this._lanes = [null, null];
    this._at = 0; // ms of the clock
    this._length = 0;
    this._playing = false;
    for (const index of [0, 1]) this._chooser(index);
    for (const name of ["dragover", "drop"]) addEventListener(name, keepPage);
    element("play").addEventListener("click", () => this._play(!this._playing));
    element("clock").addEventListener("input", () => this._seek(Number(element("clock").value)));
    this.visible = false;
  }

  /** The built-in pair, unless something else has been chosen. */
  async show() {
    this.visible = true;
    if (this._lanes.some(Boolean) || this._loading) return this._draw();
    this._loading = true;
    const texts = await Promise.all(BUILT_IN.map((name) => fetch(new URL(name, import.meta.url)).then(whole, () => null)));
    this._loading = false;
    texts.forEach((text, index) => text && !this._lanes[index] && this._load(index, text, element(`lane-${index}`).dataset.title));
    return undefined;
  }

  hide() {
    this.visible = false;
    this._play(false);
  }

  restyle() {
    for (const lane of this._lanes) lane?.chart.restyle();
    this._draw();
  }

  _chooser(index) {
    const section = element(`lane-${index}`);
    const take = async (file) => {
      if (!file) return;
      if (file.size > MAX_BYTES) return this._tell(`${file.name} has ${file.size} bytes; the limit is ${MAX_BYTES}.`);
      const text = await file.text().catch(() => null);
      return text === null ? this._tell(`${file.name} cannot be read.`) : this._load(index, text, file.name);
    };
    element(`file-${index}`).addEventListener("change", async ({ target }) => {
      await take(target.files[0]);
      target.value = ""; // the same file may be chosen again after a change
    });
    section.addEventListener("dragover", (event) => (event.preventDefault(), section.classList.add("over")));
    section.addEventListener("dragleave", () => section.classList.remove("over"));
    section.addEventListener("drop", (event) => {
      event.preventDefault();
      section.classList.remove("over");
      take(event.dataTransfer.files[0]);
    });
  }

  _load(index, text, name) {
    let timeline;
    try {
      timeline = parse(text);
    } catch (error) {
      return this._tell(`${name} is no recording: ${error.message}`);
    }
    this._tell(timeline.first ? `${name} is long: only its last ${timeline.items.length} iterations are shown.` : "");
    this._lanes[index]?.chart.close();
    const holder = element(`replay-${index}`);
    const chart = new Chart(holder, timeline, { scale: 1, label: `Recording ${name}; arrow keys move a cursor` });
    chart.following = false;
    chart.resized = () => this._draw();
    const cursor = inspectable(chart);
    chart.overlay.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      this._play(false);
      cursor.move(...step);
      this._draw();
    });
    chart.overlay.addEventListener("pointermove", () => this._draw());
    this._lanes[index] = { timeline, chart, totals: totals(timeline) };
    element(`name-${index}`).textContent = name;
    this._align();
    element("clock").max = String(Math.ceil(this._length));
    this._seek(Math.min(this._at || 0.45 * this._length, this._length));
    return undefined;
  }

  /** Give both charts one scale and as many rows. */
  _align() {
    const lanes = this._lanes.filter(Boolean);
    this._length = Math.max(...lanes.map(({ timeline }) => timeline.last.at + timeline.last.ms));
    const times = lanes.flatMap(({ timeline }) => timeline.items.map(({ ms }) => ms)).sort((a, b) => a - b);
    for (const { chart } of lanes) {
      chart.scale = ITERATION / Math.max(times[times.length >> 1], 0.1);
      chart.least = Math.max(...lanes.map(({ timeline }) => timeline.rows));
      chart.redraw();
    }
  }

  _tell(words) {
    element("replay-error").textContent = words;
  }

  _play(yes) {
    if (this._playing === yes) return;
    this._playing = yes;
    element("play").textContent = yes ? "Pause" : "Play";
    if (yes && this._at >= this._length) this._at = 0;
    let before = performance.now();
    const tick = (now) => {
      if (!this._playing) return;
      this._at += (now - before) * Number(element("speed").value);
      before = now;
      if (this._at >= this._length) {
        this._at = this._length;
        this._play(false);
      }
      this._draw();
      requestAnimationFrame(tick);
    };
    if (yes) requestAnimationFrame(tick);
  }

  _seek(at) {
    this._at = at;
    this._draw();
  }

  _draw() {
    if (!this.visible) return;
    element("clock").value = String(Math.round(this._at));
    element("clock-text").textContent = `${(this._at / 1000).toFixed(1)} s`;
    this._lanes.forEach((lane, index) => {
      if (!lane) return;
      lane.chart.play(this._at);
      element(`totals-${index}`).textContent = summary(lane, this._at);
    });
  }
}

/** A browser would show a file that misses the charts instead of this page. */
function keepPage(event) {
  if (event.dataTransfer.types.includes("Files")) event.preventDefault();
}

async function whole(response) {
  return response.ok ? response.text() : null;
}

function summary({ timeline, totals: all }, at) {
  const { items } = timeline;
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (items[middle].at <= at) low = middle + 1;
    else high = middle;
  }
  const { tokens, ended } = all[low - 1] ?? { tokens: 0, ended: 0 };
  const rate = at > 0 ? ((1000 * tokens) / at).toFixed(0) : "0";
  return `${ended} requests ended · ${tokens.toLocaleString("en")} tokens · ${rate} tokens/s`;
}
