"""The parts of `python -m load.evaluation`, one module each.

A part has `HELP` (what it shows), `measure(bench) -> Found` and, if it has plots, `plots(found) -> Plots`, which draws
nothing but says what to draw. Its name is that of its module and of its JSON file.
"""

from __future__ import annotations

from types import ModuleType

from load.evaluation.parts import (
    figure_10,
    neighbours,
    over_http,
    overload,
    peers,
    plane,
    recovery,
    sizes,
    start,
)

# in the order in which they are measured: those in this process first
ORDER = (figure_10, over_http, recovery, overload, neighbours, plane, start, peers, sizes)
PARTS: dict[str, ModuleType] = {part.__name__.rpartition(".")[2]: part for part in ORDER}
