// The view of the iterations as they happen: a chart for each engine, with pause, zoom and scrolling.

import { Chart, WIDTHS } from "./chart.js";
import { Feed } from "./feed.js";
import { Figures, labelOf, ratesOf } from "./figures.js";
import { clock } from "./overlay.js";
import { inspectable } from "./inspect.js";
import { Timeline } from "./timeline.js";

const STATUS = {
  live: "live",
  connecting: "connecting",
  busy: "too many pages watch",
  off: "not watching",
  key: "needs a key",
  missing: "no live feed",
};
const MOST_GAPS = 4; // that are told
const FRAME = 30; // ms between two pictures, at least
const element = (id) => document.getElementById(id);

export class Live {
  /** `refused()`: the server asks for a key. */
  constructor(refused) {
    this._engines = new Map(); // by name: { timeline, chart, cursor }
    this._figures = new Figures();
    this._column = matchMedia("(max-width: 600px)").matches ? 4 : 6;
    this._frame = 0;
    this._drawn = 0; // when, in ms
    this._lost = 0; // batches
    this._paused = false;
    this._feed = new Feed(
      (event, data) => this._take(event, data),
      (status) => {
        element("status").textContent = STATUS[status];
        element("status").dataset.status = status;
        if (status !== "live") for (const { timeline } of this._engines.values()) timeline.interrupt();
        if (status === "key") refused();
      },
    );
    element("pause").addEventListener("click", () => this._pause(!this._paused));
    element("zoom-in").addEventListener("click", () => this._zoom(1));
    element("zoom-out").addEventListener("click", () => this._zoom(-1));
  }

  watch(yes) {
    if (yes) this._feed.start();
    else this._feed.stop();
  }

  restyle() {
    for (const { chart } of this._engines.values()) chart.restyle();
    this._draw();
  }

  _take(event, data) {
    if (event === "iterations") {
      const { timeline } = this._engine(data.engine);
      const end = timeline.end;
      timeline.add(data);
      for (let at = Math.max(end, timeline.first); at < timeline.end; at++) this._gap(data.engine, timeline.item(at));
      element("nothing").hidden = true;
      this._draw();
    } else if (event === "state") {
      const timelines = [...this._engines.values()].map(({ timeline }) => timeline);
      this._figures.show(data, ratesOf(timelines, Date.now()));
    } else if (event === "lost") {
      this._lost += data.batches;
      element("lost").hidden = false;
      element("lost").textContent = `${this._lost} batches were not sent, because this page was slow.`;
    }
  }

  /** Tell of a gap in which requests waited. */
  _gap(name, { gap, busy, taken, at, ms }) {
    if (!gap || !busy) return;
    const line = document.createElement("li");
    const how = taken ? "its engine or scheduler was replaced, and its requests go on" : "it goes on";
    const label = labelOf(name, [...this._engines.keys()]);
    line.textContent = `${clock(at)} Engine ${label} ran no iteration for ${(ms / 1000).toFixed(1)} s; ${how}.`;
    element("gaps").prepend(line);
    while (element("gaps").children.length > MOST_GAPS) element("gaps").lastChild.remove();
  }

  _engine(name) {
    let engine = this._engines.get(name);
    if (engine) return engine;
    const holder = document.createElement("div");
    holder.className = "chart";
    const title = document.createElement("h3");
    const names = [...this._engines.keys(), name].sort();
    title.textContent = `Engine ${labelOf(name, names)}`;
    const after = [...element("charts").children][2 * names.indexOf(name)] ?? null;
    element("charts").insertBefore(title, after);
    element("charts").insertBefore(holder, after);
    const timeline = new Timeline();
    const chart = new Chart(holder, timeline, { label: `Iterations of engine ${name}; arrow keys move a cursor` });
    chart.column = this._column;
    chart.resized = () => this._draw();
    engine = { timeline, chart, cursor: inspectable(chart) };
    this._engines.set(name, engine);
    this._control(engine);
    return engine;
  }

  _control({ chart, cursor }) {
    const canvas = chart.overlay;
    const keys = {
      ArrowLeft: () => cursor.move(-1, 0),
      ArrowRight: () => cursor.move(1, 0),
      ArrowUp: () => cursor.move(0, -1),
      ArrowDown: () => cursor.move(0, 1),
      PageUp: () => this._pan(-chart.width * 0.8),
      PageDown: () => this._pan(chart.width * 0.8),
      Home: () => this._pan(-Infinity),
      End: () => this._pause(false),
      "+": () => this._zoom(1),
      "-": () => this._zoom(-1),
      " ": () => this._pause(!this._paused),
    };
    canvas.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      if (event.key.startsWith("Arrow")) this._pause(true);
      act();
      this._draw();
    });
    canvas.addEventListener("wheel", (event) => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      if (!sideways) return;
      event.preventDefault();
      this._pan(event.deltaX || event.deltaY);
    });
    canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
    canvas.addEventListener("pointermove", (event) => {
      if (event.buttons & 1 && Math.abs(event.movementX)) this._pan(-event.movementX);
      this._draw();
    });
    canvas.addEventListener("pointerleave", () => this._draw());
  }

  _pan(pixels) {
    this._pause(true);
    for (const { chart, cursor } of this._engines.values()) {
      cursor.clear();
      chart.pan(pixels);
    }
    this._draw();
  }

  _zoom(steps) {
    const index = WIDTHS.indexOf(this._column) + steps;
    this._column = WIDTHS[Math.min(Math.max(index, 0), WIDTHS.length - 1)];
    for (const { chart, cursor } of this._engines.values()) {
      cursor.clear();
      chart.zoom(this._column);
    }
    this._draw();
  }

  _pause(yes) {
    this._paused = yes;
    for (const { chart } of this._engines.values()) chart.following = !yes;
    element("pause").textContent = yes ? "Go to now" : "Pause";
    element("pause").classList.toggle("primary", yes);
    this._draw();
  }

  _draw() {
    this._frame ||= requestAnimationFrame((now) => {
      this._frame = 0;
      if (now - this._drawn < FRAME) return this._draw();
      this._drawn = now;
      let moving = false;
      for (const { chart } of this._engines.values()) {
        chart.render();
        moving ||= chart.following && chart.right < chart.endOfTime;
      }
      if (moving) this._draw();
      return undefined;
    });
  }
}
