"""The spans of a trace as a waterfall: text for a terminal, SVG for documents."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from load.traces.collector import ReceivedSpan
from services.tracing import names

BAR = 56  # characters
SHOWN = (names.ENDED_BY, names.ITERATIONS, names.CHUNKS, names.COMPLETION_TOKENS)
LEFT, WIDTH, ROW, BOTTOM = 250, 620, 26, 34  # of the SVG, in pixels
COLORS = {"gateway": "#3b6fb6", "scheduler": "#c2701c"}
FADED = {names.QUEUE: "#9a9a9a"}


@dataclass(frozen=True, slots=True)
class Row:
    """A span with its depth below the first one."""

    span: ReceivedSpan
    depth: int


def rows_of(spans: list[ReceivedSpan]) -> list[Row]:
    """The spans as a tree, children in the order of their beginnings. A span whose parent is missing is a root."""
    ids = {span.id for span in spans}
    children: dict[str, list[ReceivedSpan]] = {}
    for span in sorted(spans, key=lambda span: span.begin):
        children.setdefault(span.parent if span.parent in ids else "", []).append(span)

    def below(parent: str, depth: int) -> list[Row]:
        return [row for span in children.get(parent, []) for row in (Row(span, depth), *below(span.id, depth + 1))]

    return below("", 0)


def _text_of(span: ReceivedSpan) -> str:
    shown = [f"{key.rsplit('.', 1)[1]}={span.attributes[key]}" for key in SHOWN if key in span.attributes]
    events = [f"○ {name}" for name in span.events]
    return ", ".join([*shown, *events, *([span.error] if span.error else [])])


def as_text(spans: list[ReceivedSpan]) -> str:
    """One line for each span: its bar, its name, the process, milliseconds from the beginning, and what it holds."""
    first, last = min(span.begin for span in spans), max(span.end for span in spans)
    lines = []
    for row in rows_of(spans):
        span, scale = row.span, BAR / max(last - first, 1e-9)
        begin, length = int((span.begin - first) * scale), max(1, round((span.end - span.begin) * scale))
        bar = (" " * min(begin, BAR - 1) + "█" * length)[:BAR]
        name = "  " * row.depth + span.name
        times = f"{(span.begin - first) * 1e3:8.1f} +{(span.end - span.begin) * 1e3:8.1f} ms"
        lines.append(f"{name:22} {span.process:9} {span.pid:>8} {times} |{bar:{BAR}}| {_text_of(span)}".rstrip())
    return "\n".join(lines)


def as_svg(spans: list[ReceivedSpan], title: str) -> str:
    """The same as a picture, with a color for each kind of process."""
    rows = rows_of(spans)
    first, last = min(span.begin for span in spans), max(span.end for span in spans)
    scale = WIDTH / max(last - first, 1e-9)
    height = ROW * (len(rows) + 2) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 30}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="18" font-size="14" font-weight="bold" fill="#222">{escape(title)}</text>',
    ]
    for part in range(5):
        x, at = LEFT + WIDTH * part / 4, (last - first) * part / 4
        parts.append(f'<line x1="{x}" y1="{ROW}" x2="{x}" y2="{height - BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{x}" y="{height - 16}" text-anchor="middle" fill="#555">{at:.2f} s</text>')
    for number, row in enumerate(rows):
        parts += _svg_row(row, ROW * (number + 1) + 8, first, scale)
    return "\n".join([*parts, "</svg>", ""])


def _svg_row(row: Row, y: int, first: float, scale: float) -> list[str]:
    span = row.span
    begin, length = LEFT + (span.begin - first) * scale, max(1.5, (span.end - span.begin) * scale)
    color = FADED.get(span.name, COLORS.get(span.process, "#444"))
    text = f"{(span.end - span.begin) * 1e3:,.1f} ms  {_text_of(span)}".strip()
    label = escape(f"{span.name} · {span.process} {span.pid}")
    marks = [
        f'<circle cx="{LEFT + (at - first) * scale:.1f}" cy="{y + 9}" r="4" fill="white" stroke="#222"/>'
        for at in span.events.values()
    ]
    return [
        f'<text x="{10 + 14 * row.depth}" y="{y + 13}" fill="#222">{label}</text>',
        f'<rect x="{begin:.1f}" y="{y}" width="{length:.1f}" height="18" rx="2" fill="{color}"/>',
        *marks,
        f'<text {_place(text, begin, length)} y="{y + 13}" font-size="11">{escape(text)}</text>',
    ]


def _place(text: str, begin: float, length: float) -> str:
    """Where the text of a bar stands: inside, beside, or before it, wherever there is room."""
    room = 6.2 * len(text) + 10
    if begin + length + room < LEFT + WIDTH:
        return f'x="{begin + length + 5:.1f}" fill="#333"'
    if room > length and begin - room > LEFT:
        return f'x="{begin - 5:.1f}" text-anchor="end" fill="#333"'
    return f'x="{begin + length - 5:.1f}" text-anchor="end" fill="white"'
