"""Phases: what the engine is timed at, each beside its floor, and its goal where there is one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from load.bench.batches import Batches, RecordingEngine, TimedIteration
from load.bench.bench import CUT, Bench, PartResult
from load.bench.floor import KINDS, Floor, floor
from load.in_process import Setup, run_in_process
from load.report import table
from load.trace import Request
from load.workloads import alike, any_prompt
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

    @property
    def each(self) -> float:
        """Seconds of an iteration."""
        return self.seconds / self.iterations

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
    """Equal requests, so that nearly all iterations are increments of all of them; on a GPU also the share of the time
    in which it works, by what the same increments take if it never waits for the host."""
    requests = alike(*LOOP, MAX_BATCH_SIZE)
    ran, seconds = _run(bench, requests, MAX_BATCH_SIZE)
    found = list(_described(bench, "loop", requests, MAX_BATCH_SIZE, ran, seconds))
    if bench.lookahead:
        full = _increments(ran, MAX_BATCH_SIZE)
        held_up = _increments(_run(bench, requests, MAX_BATCH_SIZE, held_up=True)[0], MAX_BATCH_SIZE)
        each = full[-1].ended.seconds_since(full[0].ended) / (len(full) - 1)
        works = statistics.fmean(one.ended.seconds_since(one.began) for one in held_up)
        figures = {"ms in the loop": each * 1e3, "ms of the device": works * 1e3, "share of the device": works / each}
        found[-1].figures.update(figures)
    return _found(bench, iter(found))


def increments(bench: Bench) -> PartResult:
    """Increment iterations of all contexts and batches that fit."""
    batches, plan = Batches(bench.engine, bench.lookahead), bench.plan
    each = ((batch, context) for context in map(bench.context, plan.contexts) for batch in plan.batches)
    fit = ((batch, context) for batch, context in each if batches.fits(batch, context + bench.scale.steps))
    return _found(bench, (_increment(bench, batches, *one) for one in fit))


def initiations(bench: Bench) -> PartResult:
    """Initiation iterations of all totals, in prompts as long as each context."""
    batches, plan = Batches(bench.engine, bench.lookahead), bench.plan
    each = ((n // length, length) for length in map(bench.context, plan.contexts) for n in plan.initiations)
    fit = ((prompts, length) for prompts, length in each if prompts and batches.fits(prompts, length))
    return _found(bench, (_initiation(bench, batches, *one) for one in fit))


def mixed(bench: Bench) -> PartResult:
    """Increments of each context together with prompts as long as the first, and both run apart."""
    batches, plan, steps = Batches(bench.engine, bench.lookahead), bench.plan, bench.scale.steps
    length, found, rows = bench.context(plan.contexts[0]), [], []
    for context, (batch, prompts) in ((bench.context(context), one) for context in plan.contexts for one in plan.mixed):
        if bench.budget.spent or not batches.fits_mixed(batch, context + steps, prompts, length):
            continue
        name = f"{batch} increments at {context}, {prompts} x {length} tokens"
        both = _alike(bench, name, batches.mixed(batch, context, prompts, length, steps)[1:])
        one, other = _increment(bench, batches, batch, context), _initiation(bench, batches, prompts, length)
        times = {"mixed": both.each, "increments": one.each, "initiations": other.each}
        ratio = both.each / (one.each + other.each)
        found.append({"name": name, **times, "ratio": ratio, "goal": MIXED_GOAL})
        cells = [f"{seconds * 1e3:,.2f}" for seconds in times.values()]
        rows.append([name, *cells, f"{ratio:.2f}", MIXED_GOAL, _reached(ratio <= MIXED_GOAL)])
    head = ["iteration", "mixed, ms", "increments alone, ms", "initiations alone, ms", "ratio", "goal", "reached"]
    return PartResult(_with_note(bench, table(head, rows)), found)


def _traced(bench: Bench, name: str, requests: Sequence[Request], max_batch_size: int) -> Iterator[Measured]:
    """All `requests` at once through EngineLoop: the whole trace, then its increment iterations."""
    ran, seconds = _run(bench, requests, max_batch_size)
    yield from _described(bench, name, requests, max_batch_size, ran, seconds)


def _run(
    bench: Bench, requests: Sequence[Request], max_batch_size: int, held_up: bool = False
) -> tuple[list[TimedIteration], float]:
    """The iterations of all requests, and the seconds that they took together. `held_up`: see RecordingEngine."""
    figures = bench.engine.figures
    requests = [replace(one, prompt=[token % figures.vocab_size for token in one.prompt]) for one in requests]
    recording = RecordingEngine(bench.engine, bench.device, held_up)
    knobs = Knobs(max_batch_size, lookahead=bench.lookahead)
    run_in_process(bench.engine, [Request(any_prompt(16, 0), 2)], Setup(Knobs(1)))  # costs that occur only once
    began = time.perf_counter()
    run_in_process(recording, requests, Setup(knobs))
    return recording.ran, time.perf_counter() - began


def _increments(ran: Sequence[TimedIteration], batch: int) -> list[TimedIteration]:
    return [one for one in ran if one.is_increment and len(one.spans) == batch]


def _described(
    bench: Bench,
    name: str,
    requests: Sequence[Request],
    max_batch_size: int,
    ran: Sequence[TimedIteration],
    seconds: float,
) -> Iterator[Measured]:
    yield Measured(
        name,
        len(ran),
        floor(bench.shape, bench.rates, [one.spans for one in ran]),
        seconds,
        {
            "output tokens a second": sum(request.max_new_tokens for request in requests) / seconds,
            "share inside the engine": sum(one.seconds for one in ran) / seconds,
        },
    )
    if same := _increments(ran, max_batch_size):
        yield _alike(bench, f"{name}: increment at batch {max_batch_size}", same)


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
    """Iterations of `batch` requests."""
    name, goal = f"increment, batch {batch}, context {context}", bench.plan.increment_goal
    return _clocked(bench, name, goal, lambda: batches.mixed(batch, context, 0, 0, bench.scale.steps))


def _initiation(bench: Bench, batches: Batches, prompts: int, length: int) -> Measured:
    """Iterations of `prompts` prompts."""
    name, goal = f"initiation, {prompts} x {length} tokens", bench.plan.initiation_goal
    return _clocked(bench, name, goal, lambda: batches.mixed(0, 0, prompts, length, 1 + bench.scale.times))


def _clocked(bench: Bench, name: str, goal: float | None, run: Callable[[], list[TimedIteration]]) -> Measured:
    """Iterations of which the first is not counted, with the share of each phase of the layers if they have a clock."""
    clock: Callable[[], dict[str, float]] = getattr(bench.engine.decoder, "seconds", dict)
    before, ran = clock(), run()
    whole, found = sum(one.seconds for one in ran), _alike(bench, name, ran[1:], goal)
    found.figures.update({f"share of {phase}": (at - before[phase]) / whole for phase, at in clock().items()})
    return found


def _found(bench: Bench, measured: Iterator[Measured]) -> PartResult:
    """Milliseconds of an iteration in the mean, the parts of its floor, and the further figures of each phase."""
    found, rows, notes = [], [], []
    for one in measured:
        found.append(one)
        cells = [one.floor.seconds, one.seconds, *(one.floor.by_kind[kind] for kind in KINDS)]
        lowest, taken, *kinds = (f"{cell / one.iterations * 1e3:,.2f}" for cell in cells)
        goal = ["", ""] if one.goal is None else [f"{one.goal:.0%}", _reached(one.share >= one.goal)]
        rows.append([one.name, one.iterations, lowest, taken, f"{one.share:.0%}", *goal, *kinds])
        notes.append(f"- {one.name}: " + ", ".join(f"{what} {value:,.2f}" for what, value in one.figures.items()))
        if bench.budget.spent:
            break
    head = ["phase", "iterations", "floor, ms", "time, ms", "share of the floor's rate", "goal", "reached"]
    text = table([*head, *(f"floor of {kind}, ms" for kind in KINDS)], rows)
    return PartResult(_with_note(bench, "\n".join([text, "", *notes])), [one.json() for one in found])


def _with_note(bench: Bench, text: str) -> str:
    return f"{text}\n\n{CUT}" if bench.budget.spent else text


def _reached(is_reached: bool) -> str:
    return "yes" if is_reached else "**no**"
