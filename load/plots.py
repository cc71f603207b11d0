"""Plots as PNG files: lines over numbers, and bars beside names."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

WIDTH, HEIGHT = 5.2, 4.2  # inches of a panel
DPI = 130
DENSE, SPARSE = (0, (1, 1.5)), (0, (1, 5))  # of dots
CHARACTERS = 92  # of a note, below one panel
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#333333",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "font.size": 9.5,
    "grid.color": "#dddddd",
    "legend.fontsize": 8.5,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
}


@dataclass(frozen=True, slots=True)
class Line:
    """`dots`: no line, but a small dot for each point. `limit`: an x at which a dotted vertical line of the same colour
    is drawn, with fewer dots if the line is dashed. `color`: one of matplotlib's; empty: the next of its cycle."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False
    dots: bool = False
    limit: float | None = None
    color: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One of the plots of a file. What lies above `y_most` is cut off; the x axis begins at `x_least`. `marks`: texts
    beside vertical lines at an x. `note`: a line below the plot."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    y_most: float | None = None
    x_least: float | None = None
    log_x: bool = False
    log_y: bool = False
    marks: Mapping[str, float] | None = None
    note: str = ""

    def draw(self, axis: Axes) -> None:
        for line in self.lines:
            style: dict[str, Any] = {"color": line.color} if line.color else {}
            if line.dots:
                axis.plot(line.x, line.y, ".", markersize=4, alpha=0.5, label=line.label, **style)
            else:
                kind = "--" if line.dashed else "-"
                (drawn,) = axis.plot(line.x, line.y, kind, marker="o", markersize=3.5, label=line.label, **style)
                style = {"color": drawn.get_color()}
            if line.limit is not None:
                axis.axvline(line.limit, linestyle=SPARSE if line.dashed else DENSE, linewidth=1.2, **style)
        axis.set(title=self.title, xlabel=self.x_label, ylabel=self.y_label)
        axis.margins(y=0.15 if self.marks else 0.05)  # room for their texts
        if self.log_x:
            axis.set_xscale("log")
        if self.log_y:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 4.0, 5.0, 7.0)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.set_ylim(top=self.y_most)
        else:
            axis.set_ylim(0, self.y_most)
        for text, x in (self.marks or {}).items():
            axis.axvline(x, color="#c0392b", linewidth=1.2)
            axis.annotate(
                text, (x, 0.97), (4, 0), ("data", "axes fraction"), "offset points", color="#c0392b", va="top"
            )
        if self.x_least is not None:
            axis.set_xlim(left=self.x_least)
        axis.grid(color="#dddddd")
        if self.lines:
            axis.legend()


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars, of which each has its value at its end: `groups` has the value of each bar by the name of its
    group. Bars with the same name have the same colour in all groups."""

    title: str
    x_label: str
    groups: Mapping[str, Mapping[str, float]]
    note: str = ""

    def draw(self, axis: Axes) -> None:
        names = list(dict.fromkeys(name for bars in self.groups.values() for name in bars))
        place, most = 0.0, 0.0
        ticks = []
        for bars in self.groups.values():
            ticks.append(place + (len(bars) - 1) / 2)
            for name, value in bars.items():
                axis.barh(place, value, height=0.8, color=f"C{names.index(name)}")
                axis.annotate(_short(value), (value, place), (4, 0), textcoords="offset points", va="center")
                place, most = place + 1, max(most, value)
            place += 0.8
        axis.set(title=self.title, xlabel=self.x_label)
        axis.set_yticks(ticks, list(self.groups))
        axis.set_xlim(0, 1.15 * most or 1)
        axis.invert_yaxis()
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x")
        if len(names) > 1:
            for number, name in enumerate(names):
                axis.barh(0, 0, color=f"C{number}", label=name)
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)


def draw(path: Path, panels: Sequence[Panel | Bars], note: str = "") -> None:
    """Draw all `panels` side by side into one PNG file, with `note` below those of the panels."""
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH * len(panels), HEIGHT), layout="constrained")
        for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            panel.draw(axis)
        texts = [text for text in dict.fromkeys([*(panel.note for panel in panels), note]) if text]
        if notes := [line for text in texts for line in textwrap.wrap(text, CHARACTERS * len(panels))]:
            figure.supxlabel("\n".join(notes), fontsize=8, color="#666666", x=0.01, ha="left")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DPI, metadata={"Software": None})


def _short(value: float) -> str:
    """About three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
