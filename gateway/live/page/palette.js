// Colours of the charts. Eight hues that colour-blind people tell apart (after Okabe and Ito), in three patterns.

const HUES = {
  light: ["#0072b2", "#d55e00", "#009e73", "#b0559a", "#c79200", "#3a9bd9", "#7a5cc7", "#6b7a89"],
  dark: ["#4aa8e8", "#f0813a", "#2fc79a", "#dc8bc4", "#e8c04a", "#8ccdf5", "#ab95f0", "#9fb0c0"],
};
export const PATTERNS = 3;

/** The colours of the current theme; `patterns[hue]` fills chunks. */
export class Palette {
  constructor(context) {
    const probe = document.body.appendChild(document.createElement("span"));
    const style = getComputedStyle(probe);
    const read = (name) => {
      probe.style.color = `var(${name})`; // a canvas does not know variables nor light-dark()
      return style.color;
    };
    this.hues = HUES[document.documentElement.dataset.theme] ?? HUES.light;
    this.surface = read("--surface");
    this.ink = read("--ink");
    this.muted = read("--muted");
    this.line = read("--line");
    this.stripe = read("--stripe");
    this.accent = read("--accent");
    this.alarm = read("--alarm");
    this.font = style.fontFamily;
    probe.remove();
    this.patterns = this.hues.map((hue) => stripes(context, hue, this.surface));
    this.hatch = stripes(context, this.line, this.surface);
  }

  hue(colour) {
    return this.hues[colour % this.hues.length];
  }

  stripes(colour) {
    return this.patterns[colour % this.hues.length];
  }

  /** 0: solid, 1: with a line in the middle, 2: dashed. */
  pattern(colour) {
    return Math.floor(colour / this.hues.length) % PATTERNS;
  }
}

function stripes(context, hue, ground) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const draw = tile.getContext("2d");
  draw.fillStyle = ground;
  draw.fillRect(0, 0, 6, 6);
  draw.strokeStyle = hue;
  draw.lineWidth = 2.6;
  draw.beginPath();
  for (const shift of [-6, 0, 6]) {
    draw.moveTo(shift - 1, 7);
    draw.lineTo(shift + 7, -1);
  }
  draw.stroke();
  return context.createPattern(tile, "repeat");
}
