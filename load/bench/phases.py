"""Phases: what the engine is timed at, each beside its floor, and its goal where there is one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from load.bench.batches import Batches, RecordingEngine, TimedIteration
from load.bench.bench import CUT, Bench, PartResult
from load.bench.floor import KINDS, Floor, floor
from load.in_process import Setup, run_in_process
from load.report import table
from load.trace import Request
from load.workloads import any_prompt, sized
from load.workloads import single as lone
from services.scheduling import Knobs

MAX_BATCH_SIZE = 32
LOOP = (32, 200)  # tokens in and out of each request of the part `loop`
MIXED_GOAL = 1.1  # times the sum of both parts run apart


@dataclass(frozen=True, slots=True)
class Measured:
    """A phase of the engine beside its floor. `seconds`: what its iterations took together, or would take if each took
    the median. `goal`: the share of the floor's rate that is to be reached; None if there is none."""

    name: str
    iterations: int
    floor: Floor
    seconds: float
    figures: dict[str, float] = field(default_factory=dict)  # further figures of this phase, by name
    goal: float | None = None

    @property
    def share(self) -> float:
        return self.floor.seconds / self.seconds

    def json(self) -> dict[str, Any]:
        """The result as plain lists and dicts, with the floor in seconds and the share."""
        return {**asdict(self), "floor_seconds": self.floor.seconds, "share": self.share}


def single(bench: Bench) -> PartResult:
    """One request, 128 tokens in and 128 out."""
    return _found(bench, _traced(bench, "single", lone(), 1))


def paper(bench: Bench) -> PartResult:
    """The paper's trace."""
    return _found(bench, _traced(bench, "paper", bench.scale.trace, MAX_BATCH_SIZE))


def loop(bench: Bench) -> PartResult:
    """Equal requests, so that nearly all iterations are increments of all of them."""
    return _found(bench, _traced(bench, "loop", [sized(*LOOP)] * MAX_BATCH_SIZE, MAX_BATCH_SIZE))


def increments(bench: Bench) -> PartResult:
    """Increment iterations of all contexts and batches that fit."""
    return _found(bench, _increments(bench))


def initiations(bench: Bench) -> PartResult:
    """Initiation iterations of all totals, in prompts as long as each context."""
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
        times = [f"{one[kind] * 1e3:,.2f}" for kind in ("mixed", "increments", "initiations")]
        rows.append([one["name"], *times, f"{one['ratio']:.2f}", MIXED_GOAL, _reached(one["ratio"] <= MIXED_GOAL)])
    head = ["iteration", "mixed, ms", "increments alone, ms", "initiations alone, ms", "ratio", "goal", "reached"]
    return PartResult(_with_note(bench, table(head, rows)), found)


def graphs(bench: Bench) -> PartResult:
    """Increments of the first context with the decoder's CUDA graphs and without them, if it has any."""
    decoder: Any = bench.engine.decoder
    captured = getattr(decoder, "graphs", None)
    if captured is None:
        return PartResult(f"The decoder has no graphs: {decoder.path} on {bench.device.type}.", [])
    batches, context = Batches(bench.engine), bench.context(bench.plan.contexts[0])
    found = []
    for batch in bench.plan.batches:
        if bench.budget.spent or not batches.fits(batch, context + bench.scale.steps):
            continue
        replayed = _increment(bench, batches, batch, context)
        decoder.graphs = None
        try:
            launched = _increment(bench, batches, batch, context)
        finally:
            decoder.graphs = captured
        times = {name: one.seconds / one.iterations for name, one in (("graph", replayed), ("launched", launched))}
        found.append({"batch": batch, "context": context, **times})
    rows = []
    for one in found:
        milliseconds = [f"{one[name] * 1e3:,.2f}" for name in ("graph", "launched")]
        rows.append([f"batch {one['batch']}", *milliseconds, f"{one['launched'] / one['graph']:.2f}"])
    head = [f"increment, context {context}", "as a graph, ms", "kernel by kernel, ms", "ratio"]
    return PartResult(_with_note(bench, table(head, rows)), found)


def _traced(bench: Bench, name: str, requests: Sequence[Request], max_batch_size: int) -> Iterator[Measured]:
    """All `requests` at once through EngineLoop: the whole trace, then its increment iterations."""
    figures = bench.engine.figures
    requests = [replace(one, prompt=[token % figures.vocab_size for token in one.prompt]) for one in requests]
    recording = RecordingEngine(bench.engine)
    run_in_process(bench.engine, [Request(any_prompt(16, 0), 2)], Setup(Knobs(1)))  # costs that occur only once
    began = time.perf_counter()
    run_in_process(recording, requests, Setup(Knobs(max_batch_size)))
    seconds = time.perf_counter() - began
    yield Measured(
        name,
        len(recording.ran),
        floor(bench.shape, bench.rates, [one.spans for one in recording.ran]),
        seconds,
        {
            "output tokens a second": sum(request.max_new_tokens for request in requests) / seconds,
            "share inside the engine": sum(one.seconds for one in recording.ran) / seconds,
        },
    )
    alike = [one for one in recording.ran if one.is_increment and len(one.spans) == max_batch_size]
    if alike:
        yield _alike(bench, f"{name}: increment at batch {max_batch_size}", alike)


def _alike(bench: Bench, name: str, ran: Sequence[TimedIteration], goal: float | None = None) -> Measured:
    """Measured from iterations that are nearly the same."""
    lowest = floor(bench.shape, bench.rates, [one.spans for one in ran])
    times = [one.seconds for one in ran]
    seconds = statistics.median(times) * len(ran)
    figures = {
        "tokens a second": sum(span.tokens for one in ran for span in one.spans) / seconds,
        "best over floor": min(times) * len(ran) / lowest.seconds,
        "share of bandwidth": lowest.moving / seconds,
    }
    return Measured(name, len(ran), lowest, seconds, figures, goal)


def _increment(bench: Bench, batches: Batches, batch: int, context: int) -> Measured:
    """Iterations of `batch` requests; the first iteration is not counted."""
    goal = None if batch in bench.plan.no_goal else bench.plan.increment_goal
    ran = batches.mixed(batch, context, 0, 0, bench.scale.steps)
    return _alike(bench, f"increment, batch {batch}, context {context}", ran[1:], goal)


def _initiation(bench: Bench, batches: Batches, prompts: int, length: int) -> Measured:
    """Iterations of `prompts` prompts; the first iteration is not counted."""
    ran = batches.mixed(0, 0, prompts, length, 1 + bench.scale.times)
    return _alike(bench, f"initiation, {prompts} x {length} tokens", ran[1:], bench.plan.initiation_goal)


def _increments(bench: Bench) -> Iterator[Measured]:
    batches = Batches(bench.engine)
    for context in map(bench.context, bench.plan.contexts):
        for batch in bench.plan.batches:
            if batches.fits(batch, context + bench.scale.steps):
                yield _increment(bench, batches, batch, context)


def _initiations(bench: Bench) -> Iterator[Measured]:
    batches = Batches(bench.engine)
    for length in map(bench.context, bench.plan.contexts):
        for tokens in bench.plan.initiations:
            if tokens >= length and batches.fits(tokens // length, length):
                yield _initiation(bench, batches, tokens // length, length)


def _mixed(bench: Bench) -> Iterator[dict[str, Any]]:
    """The median seconds of an iteration of each kind."""
    batches, plan = Batches(bench.engine), bench.plan
    length = bench.context(plan.contexts[0])
    for context in map(bench.context, plan.contexts):
        for batch, prompts in plan.mixed:
            if not batches.fits_mixed(batch, context + bench.scale.steps, prompts, length):
                continue
            name = f"{batch} increments at {context}, {prompts} x {length} tokens"
            ran = batches.mixed(batch, context, prompts, length, bench.scale.steps)[1:]
            apart = _increment(bench, batches, batch, context), _initiation(bench, batches, prompts, length)
            both, *alone = (one.seconds / one.iterations for one in (_alike(bench, name, ran), *apart))
            times = dict(zip(("mixed", "increments", "initiations"), (both, *alone), strict=True))
            yield {"name": name, **times, "ratio": both / sum(alone), "goal": MIXED_GOAL}


def _found(bench: Bench, measured: Iterator[Measured]) -> PartResult:
    """Milliseconds of an iteration in the mean, the parts of its floor, and the further figures of each phase."""
    found = []
    for one in measured:
        found.append(one)
        if bench.budget.spent:
            break
    rows = []
    for one in found:
        cells = [one.floor.seconds, one.seconds, *(one.floor.by_kind[kind] for kind in KINDS)]
        lowest, taken, *kinds = (f"{cell / one.iterations * 1e3:,.2f}" for cell in cells)
        goal = ["", ""] if one.goal is None else [f"{one.goal:.0%}", _reached(one.share >= one.goal)]
        rows.append([one.name, one.iterations, lowest, taken, f"{one.share:.0%}", *goal, *kinds])
    head = ["phase", "iterations", "floor, ms", "time, ms", "share of the floor's rate", "goal", "reached"]
    text = table([*head, *(f"floor of {kind}, ms" for kind in KINDS)], rows)
    notes = [
        f"- {one.name}: " + ", ".join(f"{what} {value:,.2f}" for what, value in one.figures.items()) for one in found
    ]
    return PartResult(_with_note(bench, "\n".join([text, "", *notes])), [one.json() for one in found])


def _with_note(bench: Bench, text: str) -> str:
    return f"{text}\n\n{CUT}" if bench.budget.spent else text


def _reached(is_reached: bool) -> str:
    return "yes" if is_reached else "**no**"
