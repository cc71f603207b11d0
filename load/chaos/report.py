"""The tables of a chaos run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise

from load.chaos.checker import Verdict
from load.chaos.grounds import Injection
from load.chaos.streams import Outcome, recovery
from load.chaos.structured import ended_by_themselves, is_constrained
from load.report import table


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
