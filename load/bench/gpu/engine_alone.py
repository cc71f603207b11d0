"""The paper's section 6.1: a batch of equal requests from start to end on the engine alone (figure 9)."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from load.bench.engine.batches import Batches
from load.bench.engine.floor import floor
from load.bench.gpu.bench import CUT, Bench, PartResult
from load.plots import Line, Panel, draw
from load.report import table

PROMPTS = (32, 128)


@dataclass(frozen=True, slots=True)
class Alone:
    """The median seconds of a batch, and its floor."""

    batch: int
    prompt: int
    output: int
    seconds: float
    floor: float

    @property
    def normalized(self) -> float:
        """Seconds for each generated token of a request."""
        return self.seconds / self.output

    def json(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "prompt": self.prompt,
            "output": self.output,
            "seconds": self.seconds,
            "floor_seconds": self.floor,
            "share": self.floor / self.seconds,
        }


def section_6_1(bench: Bench) -> PartResult:
    """All batches with both lengths of prompts; drawn as the paper's figure 9."""
    output = bench.scale.output
    found = [
        execution(bench, batch, prompt)
        for prompt in PROMPTS
        for batch in bench.configuration.alone
        if Batches(bench.engine).fits(batch, prompt + output) and not bench.budget.spent
    ]
    if bench.plots:
        _draw(bench, found)
    rows = [
        [
            f"{one.batch} x ({one.prompt} in, {output} out)",
            f"{one.floor * 1e3:,.1f}",
            f"{one.seconds * 1e3:,.1f}",
            f"{one.floor / one.seconds:.0%}",
            f"{one.normalized * 1e3:,.2f}",
            f"{one.batch * output / one.seconds:,.0f}",
        ]
        for one in found
    ]
    head = ["batch", "floor, ms", "time, ms", "share of the floor's rate", "ms a generated token", "output tokens/s"]
    text = table(head, rows)
    return PartResult(f"{text}\n\n{CUT}" if bench.budget.spent else text, [one.json() for one in found])


def execution(bench: Bench, batch: int, prompt: int) -> Alone:
    """Measure `batch` equal requests."""
    output = bench.scale.output
    batches, subject = Batches(bench.engine), bench.subject
    _, *counted = [batches.whole(batch, prompt, output) for _ in range(1 + bench.scale.times)]
    seconds = statistics.median(sum(one.seconds for one in ran) for ran in counted)
    lowest = floor(subject.shape, subject.rates, (one.spans for one in counted[0]))
    return Alone(batch, prompt, output, seconds, lowest.seconds)


def _draw(bench: Bench, found: list[Alone]) -> None:
    assert bench.plots is not None
    lines = []
    for prompt in PROMPTS:
        of_prompt = [one for one in found if one.prompt == prompt]
        x = [one.batch for one in of_prompt]
        lines.append(Line(f"orca({prompt})", x, [one.seconds * 1e3 for one in of_prompt]))
        lines.append(Line(f"floor({prompt})", x, [one.floor * 1e3 for one in of_prompt], dashed=True))
    panel = Panel(
        f"{bench.name}, {bench.scale.output} tokens out", "batch size", "execution time, ms", lines, log_x=True
    )
    draw(bench.plots / f"{bench.name}-section-6.1.png", [panel])
