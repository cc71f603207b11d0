"""Iterations put together by hand: increments, initiations, and both in one, each compared with its goal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from load.bench.engine.batches import Batches
from load.bench.engine.phases import Measured, alike, increment, initiation
from load.bench.gpu.bench import CUT, Bench, PartResult
from load.report import table

MIXED_GOAL = 1.1  # times the sum of both parts run apart


@dataclass(frozen=True, slots=True)
class Compared:
    """A phase, and the share of the floor's rate that is its goal; None: it has no goal."""

    measured: Measured
    goal: float | None

    @property
    def share(self) -> float:
        return 1.0 / self.measured.ratio

    def json(self) -> dict[str, Any]:
        return {**self.measured.json(), "share": self.share, "goal": self.goal}


@dataclass(frozen=True, slots=True)
class Mixed:
    """Median seconds of an iteration of each kind."""

    name: str
    mixed: float
    increments: float
    initiations: float

    @property
    def ratio(self) -> float:
        return self.mixed / (self.increments + self.initiations)

    def json(self) -> dict[str, Any]:
        apart = {"increments": self.increments, "initiations": self.initiations}
        return {"name": self.name, "mixed": self.mixed, **apart, "ratio": self.ratio, "goal": MIXED_GOAL}


def increments(bench: Bench) -> PartResult:
    """Increments of all contexts and batches that fit."""
    return _found(bench, _increments(bench))


def initiations(bench: Bench) -> PartResult:
    """Initiations of all totals, in prompts as long as each context."""
    return _found(bench, _initiations(bench))


def mixed(bench: Bench) -> PartResult:
    """Increments of each context together with prompts as long as the first, and both run apart."""
    found = []
    for one in _mixed(bench):
        found.append(one)
        if bench.budget.spent:
            break
    rows = []
    for one in found:
        times = [f"{seconds * 1e3:,.2f}" for seconds in (one.mixed, one.increments, one.initiations)]
        rows.append([one.name, *times, f"{one.ratio:.2f}", MIXED_GOAL, _reached(one.ratio <= MIXED_GOAL)])
    head = ["iteration", "mixed, ms", "increments alone, ms", "initiations alone, ms", "ratio", "goal", "reached"]
    return PartResult(_with_note(bench, table(head, rows)), [one.json() for one in found])


def graphs(bench: Bench) -> PartResult:
    """Increments of the first context with the decoder's CUDA graphs and without them, if it has any."""
    decoder: Any = bench.engine.decoder
    captured = getattr(decoder, "graphs", None)
    if captured is None:
        return PartResult(f"The decoder has no graphs: {decoder.path} on {bench.device.type}.", [])
    of, batches, context = bench.configuration, Batches(bench.engine), bench.configuration.contexts[0]
    found = []
    for batch in of.batches:
        if bench.budget.spent or not batches.fits(batch, context + bench.scale.steps):
            continue
        replayed = increment(bench.subject, batches, batch, context)
        decoder.graphs = None
        try:
            launched = increment(bench.subject, batches, batch, context)
        finally:
            decoder.graphs = captured
        times = {name: one.seconds / one.iterations for name, one in (("graph", replayed), ("launched", launched))}
        found.append({"batch": batch, "context": context, **times})
    head = ["increment", "as a graph, ms", "kernel by kernel, ms", "ratio"]
    rows = [
        [
            f"batch {one['batch']}, context {context}",
            f"{one['graph'] * 1e3:,.2f}",
            f"{one['launched'] * 1e3:,.2f}",
            f"{one['launched'] / one['graph']:.2f}",
        ]
        for one in found
    ]
    return PartResult(_with_note(bench, table(head, rows)), found)


def _increments(bench: Bench) -> Iterator[Compared]:
    of, batches = bench.configuration, Batches(bench.engine)
    for context in of.contexts:
        for batch in of.batches:
            if batches.fits(batch, context + bench.scale.steps):
                goal = None if batch in of.no_goal else of.increment_goal
                yield Compared(increment(bench.subject, batches, batch, context), goal)


def _initiations(bench: Bench) -> Iterator[Compared]:
    of, batches = bench.configuration, Batches(bench.engine)
    for length in of.contexts:
        for tokens in of.initiations:
            if tokens >= length and batches.fits(tokens // length, length):
                yield Compared(initiation(bench.subject, batches, tokens // length, length), of.initiation_goal)


def _mixed(bench: Bench) -> Iterator[Mixed]:
    of, batches, subject = bench.configuration, Batches(bench.engine), bench.subject
    length = of.contexts[0]
    for context in of.contexts:
        for batch, prompts in of.mixed:
            if not batches.fits_mixed(batch, context + bench.scale.steps, prompts, length):
                continue
            name = f"{batch} increments at {context}, {prompts} x {length} tokens"
            both = alike(
                name,
                batches.mixed(batch, context, prompts, length, bench.scale.steps)[1:],
                subject.shape,
                subject.rates,
            )
            apart = increment(subject, batches, batch, context), initiation(subject, batches, prompts, length)
            yield Mixed(name, *(one.seconds / one.iterations for one in (both, *apart)))


def _found(bench: Bench, measured: Iterator[Compared]) -> PartResult:
    found = []
    for one in measured:
        found.append(one)
        if bench.budget.spent:
            break
    rows = []
    for one in found:
        phase, goal = one.measured, "" if one.goal is None else f"{one.goal:.0%}"
        times = [f"{seconds / phase.iterations * 1e3:,.2f}" for seconds in (phase.floor.seconds, phase.seconds)]
        reached = "" if one.goal is None else _reached(one.share >= one.goal)
        figures = [f"{phase.figures['share of bandwidth']:.0%}", f"{phase.figures['tokens a second']:,.0f}"]
        rows.append([phase.name, *times, f"{one.share:.0%}", goal, reached, *figures])
    head = ["phase", "floor, ms", "time, ms", "share of the floor's rate", "goal", "reached"]
    text = table([*head, "share of bandwidth", "tokens/s"], rows)
    return PartResult(_with_note(bench, text), [one.json() for one in found])


def _with_note(bench: Bench, text: str) -> str:
    return f"{text}\n\n{CUT}" if bench.budget.spent else text


def _reached(is_reached: bool) -> str:
    return "yes" if is_reached else "**no**"
