"""The table of checkpoints of other tools in docs/models.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from against_tool import Compared
from routing import Flip
from tool_cases import CASES, Case

DOCUMENT = Path(__file__).parents[4] / "docs" / "models.md"
BEGIN, END = "<!-- made by `make tools` -->\n", "<!-- end of `make tools` -->\n"
HEAD = "| tool | checkpoint | model | as stored | weights | tokens | logits off the tool's |"


def table_written(document: str, found: Mapping[Case, Compared | str]) -> str:
    """The document with its table made anew. `found`: what was compared, or why it was refused."""
    before, rest = document.split(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{table(found)}\n{END}{after}"


def table(found: Mapping[Case, Compared | str]) -> str:
    """In the order of the cases; below it a line for each token that was routed otherwise."""
    rows = [HEAD, "|---|---|---|---|---|---|---|"]
    below = []
    for case in (each for each in CASES if each in found):
        one = found[case]
        what = f"| {case.tool.described} | {case.label} | {case.model} |"
        rows.append(f"{what} refused: `{one}` | | | |" if isinstance(one, str) else f"{what} {_row(one)} |")
        if not isinstance(one, str) and one.flips:
            below.append(_routing(case, one))
    return "\n".join(rows) + "\n" + ("\n" + "\n".join(below) + "\n" if below else "")


def _row(one: Compared) -> str:
    logits = f"{one.off:.2f} of {one.spread:.2f}"
    if one.flips:
        logits += f"; {one.off_routed:.2f} with its experts"
    return f"{one.as_stored} of {one.modules} | {one.weights:,} equal | equal | {logits}"


def _routing(case: Case, one: Compared) -> str:
    return f"- {case.tool.name}, {case.label}, {case.model}: {'; '.join(map(_flip, one.flips))}."


def _flip(flip: Flip) -> str:
    own, tools = flip.margins
    return (
        f"in layer {flip.layer}, token {flip.position} has another expert than with the tool. The last one chosen is "
        f"ahead of the next by {own:.3f} here and by {tools:.3f} there; the router's logits differ by {flip.noise:.3f}"
    )
