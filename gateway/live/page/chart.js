// The chart of one timeline: one row for each slot, one column for each iteration. Only new columns are drawn; the
// rest of the picture is shifted.

import { BARS, GAP_WIDTH, drawItem } from "./cells.js";
import { drawOverlay } from "./overlay.js";
import { Palette } from "./palette.js";

export const WIDTHS = [1, 2, 3, 4, 6, 8, 11, 15, 20]; // of a column, in CSS pixels
const GUTTER = 46; // to the right of the newest column: which request has the slot
const AXIS = 20;
const MIN_ROWS = 6;
const STILL = matchMedia("(prefers-reduced-motion: reduce)");

export class Chart {
  /** `scale`: CSS pixels per ms; the axis is then the time, else the iterations. */
  constructor(holder, timeline, { scale = 0, label }) {
    this.timeline = timeline;
    this.scale = scale;
    this.column = 6;
    this.following = true;
    this.until = Infinity; // ms: later iterations are not drawn
    this.least = MIN_ROWS;
    this.right = 0; // of the picture, in CSS pixels from the beginning of the timeline
    this.pointed = null; // { sequence, slot } that is inspected
    this.holder = holder;
    this.base = holder.appendChild(document.createElement("canvas"));
    this.overlay = holder.appendChild(document.createElement("canvas"));
    this.overlay.className = "overlay";
    this.overlay.tabIndex = 0;
    this.overlay.setAttribute("role", "img");
    this.overlay.setAttribute("aria-label", label);
    this.context = this.base.getContext("2d", { alpha: false });
    this.restyle();
    this.resized = () => {}; // to be set: it has another size, and has to be rendered
    this._observer = new ResizeObserver(() => {
      this._whole = true;
      this.resized();
    });
    this._observer.observe(holder);
  }

  close() {
    this._observer.disconnect();
    this.holder.replaceChildren();
  }

  restyle() {
    this.palette = new Palette(this.context);
    this._whole = true;
  }

  /** Draw everything again at the next frame. */
  redraw() {
    this._whole = true;
  }

  get rows() {
    return Math.max(this.timeline.rows, this.least);
  }

  get row() {
    if (this.rows <= 12) return 18;
    return this.rows <= 20 ? 15 : this.rows <= 34 ? 11 : this.rows <= 64 ? 8 : 5;
  }

  /** The width of the picture without its gutter. */
  get width() {
    return this._width;
  }

  left(item) {
    if (this.scale) return item.at * this.scale;
    return item.columns * this.column + item.breaks * GAP_WIDTH;
  }

  widthOf(item) {
    if (this.scale) return Math.max(item.ms * this.scale, 1);
    return item.gap ? GAP_WIDTH : this.column;
  }

  get endOfTime() {
    const last = this.timeline.last;
    return last ? this.left(last) + this.widthOf(last) : 0;
  }

  /** The sequence number of the first item that ends after x. */
  after(x) {
    const { items, first } = this.timeline;
    let [low, high] = [0, items.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.left(items[middle]) + this.widthOf(items[middle]) > x) high = middle;
      else low = middle + 1;
    }
    return first + low;
  }

  /** { sequence, slot } at a place of the picture, or null. */
  at(x, y) {
    const sequence = this.after(this.right - this._width + x);
    const slot = Math.floor(y / this.row);
    if (x > this._width || sequence >= this.timeline.end || slot >= this.rows) return null;
    return { sequence, slot };
  }

  /** Show other widths of columns, around the item at the right edge. */
  zoom(column) {
    const item = this.timeline.item(Math.min(this.after(this.right - 1), this.timeline.end - 1));
    this.column = column;
    if (item && !this.following) this.right = this.left(item) + this.widthOf(item);
    else this.right = this.endOfTime;
    this._whole = true;
  }

  /** Scroll by CSS pixels; to the right of the end, the chart follows again if `follow`. */
  pan(pixels, follow = false) {
    const first = this.timeline.items[0];
    const least = first ? Math.min(this.left(first) + this._width, this.endOfTime) : 0;
    const right = this.right + pixels;
    this.following = follow && right >= this.endOfTime;
    this.right = Math.max(Math.min(right, this.endOfTime), least);
  }

  /** Draw what has changed. `to`: the right edge, in CSS pixels; without it, the newest iteration if it follows. */
  render(to) {
    this._fit();
    if (to !== undefined) this.right = to;
    else if (this.following) this._follow();
    const edge = Math.round(this.right * this._ratio);
    const shift = edge - this._edge;
    const changed = this.timeline.dirty !== Infinity || shift || this._whole || this._end !== this.timeline.end;
    const painted = changed && this._paint(edge, shift);
    const pointed = this.pointed && `${this.pointed.sequence}/${this.pointed.slot}`;
    if (painted || pointed !== this._pointed) drawOverlay(this);
    this._pointed = pointed;
  }

  /** Draw a recording up to `at` ms. It begins at the left edge, and scrolls when it has come to the right one. */
  play(at) {
    this._fit();
    if (at * this.scale < this._width || at < this.until) this._whole = true;
    this.until = at;
    this.render(Math.max(at * this.scale, this._width));
  }

  _follow() {
    const distance = this.endOfTime - this.right;
    const jump = STILL.matches || distance < 1 || distance > this._width;
    this.right += jump ? distance : Math.max(distance * 0.3, 1);
  }

  /** Returns whether the picture has changed. */
  _paint(edge, shift) {
    let painted = this._whole || shift !== 0;
    const [width, height] = [this._pixels, this.base.height];
    const { timeline } = this;
    this._edge = edge;
    if (this._whole || Math.abs(shift) >= width) {
      this._range(0, width);
    } else {
      if (shift > 0) this.context.drawImage(this.base, shift, 0, width - shift, height, 0, 0, width - shift, height);
      if (shift < 0) this.context.drawImage(this.base, 0, 0, width + shift, height, -shift, 0, width + shift, height);
      const changed = Math.min(timeline.dirty, this._end);
      const item = timeline.item(Math.max(changed, timeline.first));
      const old = item ? Math.floor(this.left(item) * this._ratio) - edge + width : width;
      const from = Math.min(shift > 0 ? width - shift : width, old);
      if (from < width) this._range(Math.max(from, 0), width);
      painted ||= from < width;
      if (shift < 0) this._range(0, -shift);
    }
    this._whole = false;
    this._end = timeline.end;
    timeline.dirty = Infinity;
    return painted;
  }

  /** Draw the columns of the picture from device pixel `from` to `to`. */
  _range(from, to) {
    const { context, timeline, palette } = this;
    const ratio = this._ratio;
    context.save();
    context.beginPath();
    context.rect(from, 0, to - from, this.base.height);
    context.clip();
    context.fillStyle = palette.surface;
    context.fillRect(from, 0, to - from, this.base.height);
    const place = { row: this.row, rows: this.rows };
    context.scale(ratio, ratio);
    context.fillStyle = palette.line;
    for (let row = 0; row <= this.rows; row += row % 4 ? 1 : 4) {
      context.fillRect(from / ratio, Math.max(row * this.row - 0.5, 0), (to - from) / ratio, 1);
    }
    const origin = this._edge / ratio - this._width;
    for (let sequence = this.after(origin + from / ratio); sequence < timeline.end; sequence++) {
      const item = timeline.item(sequence);
      if (item.at > this.until) break;
      const x = Math.round((this.left(item) - origin) * ratio) / ratio;
      if (x * ratio >= to) break;
      drawItem(context, timeline, item, sequence, x, this.widthOf(item), place, palette);
    }
    context.restore();
  }

  _fit() {
    const ratio = Math.min(devicePixelRatio || 1, 2);
    const whole = this.holder.clientWidth;
    const height = this.rows * this.row + BARS;
    if (this._ratio === ratio && this._holder === whole && this._height === height) return;
    [this._ratio, this._holder, this._height] = [ratio, whole, height];
    this._pixels = Math.max(Math.floor((whole - GUTTER) * ratio), 1);
    this._width = this._pixels / ratio;
    this._edge = Math.round(this.right * ratio);
    resize(this.base, this._width, height, ratio);
    resize(this.overlay, whole, height + AXIS, ratio);
    this.holder.style.height = `${height + AXIS}px`;
    this._whole = true;
  }
}

function resize(canvas, width, height, ratio) {
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
}
