"""Plots of lines over numbers as PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

WIDTH, HEIGHT = 5.2, 4.2  # inches of a panel
STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titleweight": "bold",
    "font.size": 9.5,
    "grid.color": "#dddddd",
    "legend.edgecolor": "none",
}


@dataclass(frozen=True, slots=True)
class Line:
    """`dots`: no line, but a small dot for each point. `color`: one of matplotlib's; empty: the next of its cycle."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False
    dots: bool = False
    color: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One of the plots of a file. What lies above `y_most` is cut off; `mark`: an x with a vertical line."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    y_most: float | None = None
    log_x: bool = False
    log_y: bool = False
    mark: float | None = None

    def draw(self, axis: Axes) -> None:
        for line in self.lines:
            kind = {"linestyle": "", "alpha": 0.5} if line.dots else {"linestyle": "--" if line.dashed else "-"}
            style: dict[str, Any] = {"color": line.color, **kind} if line.color else kind
            axis.plot(line.x, line.y, marker="o", markersize=3, label=line.label, **style)
        axis.set(title=self.title, xlabel=self.x_label, ylabel=self.y_label)
        if self.log_x:
            axis.set_xscale("log")
        if self.log_y:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 4.0, 5.0, 7.0)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_ylim(None if self.log_y else 0, self.y_most)
        if self.mark is not None:
            axis.axvline(self.mark, color="#c0392b", linewidth=1.2)
        axis.legend()


def draw(path: Path, panels: Sequence[Panel], note: str = "") -> None:
    """Draw all `panels` side by side into one PNG file, with `note` below."""
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH * len(panels), HEIGHT), layout="constrained")
        for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            panel.draw(axis)
        if note:
            figure.supxlabel(note, fontsize=7, color="#666666", x=0.01, ha="left")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, metadata={"Software": None})
