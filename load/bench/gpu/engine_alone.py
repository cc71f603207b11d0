"""The paper's section 6.1: a batch of equal requests from start to end, the engine alone (figure 9)."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from load.bench.engine.batches import Batches
from load.bench.engine.floor import floor
from load.bench.gpu.bench import Bench, Found
from load.bench.gpu.iterations import CUT
from load.markdown import table
from load.simulation.plots import Line, Panel, draw

PROMPTS = (32, 128)
OUTPUT = 32
TIMES = 3  # after one that is not counted


@dataclass(frozen=True, slots=True)
class Alone:
    """Seconds of the batch, a median, and the least they can be."""

    batch: int
    prompt: int
    seconds: float
    floor: float

    @property
    def normalized(self) -> float:
        """Seconds for each generated token of a request."""
        return self.seconds / OUTPUT

    def json(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "prompt": self.prompt,
            "output": OUTPUT,
            "seconds": self.seconds,
            "floor_seconds": self.floor,
            "share": self.floor / self.seconds,
        }


def section_6_1(bench: Bench) -> Found:
    """All batches with both lengths of prompts; drawn as the paper's figure 9."""
    found = [
        execution(bench, batch, prompt)
        for prompt in PROMPTS
        for batch in bench.configuration.alone
        if Batches(bench.engine).fits(batch, prompt + OUTPUT) and not bench.budget.spent
    ]
    if bench.plots:
        _draw(bench, found)
    rows = [
        [
            f"{one.batch} x ({one.prompt} in, {OUTPUT} out)",
            f"{one.floor * 1e3:,.1f}",
            f"{one.seconds * 1e3:,.1f}",
            f"{one.floor / one.seconds:.0%}",
            f"{one.normalized * 1e3:,.2f}",
            f"{one.batch * OUTPUT / one.seconds:,.0f}",
        ]
        for one in found
    ]
    head = ["batch", "floor, ms", "time, ms", "share of the floor's rate", "ms a generated token", "output tokens/s"]
    text = table(head, rows)
    return Found(f"{text}\n\n{CUT}" if bench.budget.spent else text, [one.json() for one in found])


def execution(bench: Bench, batch: int, prompt: int) -> Alone:
    """Of `batch` requests, measured."""
    batches, subject = Batches(bench.engine), bench.subject
    _, *counted = [batches.whole(batch, prompt, OUTPUT) for _ in range(1 + TIMES)]
    seconds = statistics.median(sum(one.seconds for one in ran) for ran in counted)
    lowest = floor(subject.shape, subject.rates, (one.spans for one in counted[0]))
    return Alone(batch, prompt, seconds, lowest.seconds)


def _draw(bench: Bench, found: list[Alone]) -> None:
    assert bench.plots is not None
    lines = []
    for prompt in PROMPTS:
        of_prompt = [one for one in found if one.prompt == prompt]
        x = [one.batch for one in of_prompt]
        lines.append(Line(f"orca({prompt})", x, [one.seconds * 1e3 for one in of_prompt]))
        lines.append(Line(f"floor({prompt})", x, [one.floor * 1e3 for one in of_prompt], dashed=True))
    panel = Panel(f"{bench.name}, {OUTPUT} tokens out", "batch size", "execution time, ms", lines, log_x=True)
    draw(bench.plots / f"{bench.name}-section-6.1.png", [panel])
