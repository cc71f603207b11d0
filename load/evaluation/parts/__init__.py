"""The parts of `python -m load.evaluation`, one module each.

A part has `HELP` (what it shows), `measure(bench) -> Found` and `plots(found) -> Plots`, which draws nothing but says
what to draw. Its name is that of its module and of its JSON file.
"""

from __future__ import annotations

from types import ModuleType

from load.evaluation.parts import (
    figure_10,
    figure_11,
    neighbours,
    over_http,
    overload,
    peers,
    plane,
    recovery,
    start,
)

ORDER = (figure_10, figure_11, over_http, recovery, overload, neighbours, plane, start, peers)


def known() -> dict[str, ModuleType]:
    """All parts by name, in the order in which they are measured: those in this process first."""
    return {part.__name__.rpartition(".")[2]: part for part in ORDER}
