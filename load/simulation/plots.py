"""Plots of simulated runs, as PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One of the plots of a file. `y_most` cuts it, where the lines go on."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    y_most: float | None = None
    log_x: bool = False


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """All `panels` side by side into one file."""
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.2 * len(panels), 4.2), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        for line in panel.lines:
            axis.plot(line.x, line.y, "--" if line.dashed else "-", marker="o", markersize=3, label=line.label)
        axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        axis.set_ylim(0, panel.y_most)
        if panel.log_x:
            axis.set_xscale("log")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
