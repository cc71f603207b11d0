"""The parts of `python -m load.evaluation`, one module each.

A part has `HELP` (what it shows), `measure(bench) -> Found` and `plots(found) -> Plots`, which draws nothing but says
what to draw. Its name is that of its module and of its JSON file.
"""

from __future__ import annotations

from types import ModuleType

from load.evaluation.parts import article, figure_10, figure_11, over_http, overload, recovery, tinyorca, vllm

ORDER = (figure_10, figure_11, tinyorca, article, over_http, recovery, overload, vllm)


def known() -> dict[str, ModuleType]:
    """All parts by name, in the order in which they are measured: those in this process first."""
    return {part.__name__.rpartition(".")[2]: part for part in ORDER}
