"""The tables of a chaos run."""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from load.chaos.checker import Verdict
from load.chaos.streams import Outcome
from load.chaos.structured import ended_by_themselves, is_constrained
from load.report import table

UNDER_WAY = 0.5  # seconds after a fault in which tokens that were sent before may still arrive


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault as it happened. `time` is on the clock of `time.monotonic`; `skipped` tells why the fault was not
    injected; `streams` is the number of streams that were open, `documents` that of outputs with a constraint among
    them."""

    fault: str
    time: float
    skipped: str = ""
    streams: int = 0
    documents: int = 0


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds from a fault until the first and until the last of the streams that were open then continued."""

    first: float
    last: float


def recovery(at: float, outcomes: Sequence[Outcome]) -> Recovery | None:
    """The recovery from a fault at `at`: the ends of the longest silences that began within `UNDER_WAY`. None if no
    stream was open."""
    streams = [[o.began, *o.arrivals] for o in outcomes if o.began < at and (o.end == 0 or o.end > at) and o.arrivals]
    each = [end for end in (_back(at, times) for times in streams) if end is not None]
    together = _back(at, sorted(time for times in streams for time in times))
    return Recovery(together - at, max(each) - at) if each and together is not None else None


def _back(at: float, times: Sequence[float]) -> float | None:
    """When the longest silence that included `at`, or began soon after, ended."""
    silences = [(end - begin, end) for begin, end in pairwise(times) if end > at and begin < at + UNDER_WAY]
    return max(silences)[1] if silences else None


def faults_table(injections: Iterable[Injection], outcomes: Sequence[Outcome]) -> str:
    """The table of faults, with a row for each kind."""
    kinds: dict[str, list[Injection]] = {}
    for injection in injections:
        kinds.setdefault(injection.fault, []).append(injection)
    rows = []
    for kind, all in kinds.items():
        done = [i for i in all if not i.skipped]
        found = [r for r in (recovery(i.time, outcomes) for i in done) if r]
        hit = min((i.streams for i in done), default="")
        documents = sum(i.documents for i in done)
        rows.append(
            [kind, len(done), hit, documents, *_spread([r.first for r in found]), *_spread([r.last for r in found])]
        )
    head = [
        "fault",
        "times",
        "streams open, at least",
        "documents half-way, in all",
        "first token, s (median)",
        "(max)",
        "all streams, s (median)",
        "(max)",
    ]
    return table(head, rows)


def _spread(values: list[float]) -> tuple[str, str]:
    return (f"{statistics.median(values):.1f}", f"{max(values):.1f}") if values else ("", "")


def requests_table(
    outcomes: Sequence[Outcome], verdict: Verdict, unexpected: Sequence[Outcome], refused: Sequence[Outcome]
) -> str:
    """The table of what became of the requests; "lost" to "other violations" and
    "answers that are not valid" must be 0."""
    gaps = [end - begin for o in outcomes for begin, end in pairwise(o.arrivals)]
    wrong = sum(bool(o.wrong) for o in outcomes) + verdict.count("wrong", "changed", "published", "tokens")
    documents = [(o, len(ended_by_themselves(o.request, o.answer))) for o in outcomes if not o.error]
    rows: list[Sequence[object]] = [
        ["requests", len(outcomes)],
        ["sequences", sum(o.request.choices for o in outcomes)],
        ["tokens delivered", sum(len(c.token_ids) for o in outcomes for c in o.answer.choices.values())],
        ["requests with a constraint", sum(is_constrained(o.request) for o in outcomes)],
        ["requests with tools", sum("tools" in o.request.body for o in outcomes)],
        ["documents and calls that ended by themselves", sum(count for _, count in documents)],
        ["of these, after a broken connection", sum(count for o, count in documents if o.reconnects)],
        ["answers that are not valid", sum(bool(o.invalid) for o in outcomes)],
        ["came back after a broken connection or a refusal", sum(o.reconnects > 0 for o in outcomes)],
        ["poisoned, failed alone as they must", sum(o.request.name == "poison" for o in outcomes)],
        ["refused or given up for want of time, as they may be", len(refused)],
        ["lost", verdict.count("lost", "unfinished", "forgotten early") + len(unexpected)],
        ["duplicated", verdict.count("duplicated", "after the end", "ended twice")],
        ["wrong", wrong],
        ["other violations", verdict.count("state", "claim", "fence", "place", "numerics", "takeover", "too little")],
        ["largest difference of a log probability", f"{max((o.deviation for o in outcomes), default=0.0):.2g}"],
        ["longest gap in a stream, s", f"{max(gaps, default=0.0):.1f}"],
        ["sequences in the pool's file", len(verdict.pool.sequences)],
        ["tokens in the pool's file", sum(len(s.tokens) for s in verdict.pool.sequences.values())],
    ]
    return table(["", "count"], rows)


def leave(folder: Path, held: bool) -> NoReturn:
    """End a run with status 0 if all rules held; else keep its histories, and end with status 1."""
    if held:
        shutil.rmtree(folder)
    else:
        print(f"\nThe histories are in {folder}")
    sys.exit(not held)
