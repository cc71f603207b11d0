"""The history checker: checks what clients saw, what the pool did, and that both agree.

It shares no code with the pool, so that it does not repeat an error of the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from load.chaos import client_history, pool_history
from load.chaos.aof import Transaction
from load.chaos.client_history import ClientHistory, ClientRequest
from load.chaos.history import Record, Violation
from load.chaos.pool_history import PoolHistory

FORGOTTEN = 3.0  # seconds before its death that a server with `everysec` may have forgotten


@dataclass(frozen=True, slots=True)
class Least:
    """What must have happened at least for a meaningful verdict: requests that ended without an error, tokens that were
    committed for them, faults under open streams."""

    requests: int = 1
    tokens: int = 1
    faults: int = 0


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the run knows besides the histories. Times are Unix times in seconds.

    `losses`: when a server of the pool was killed that may have forgotten its last second or two; none if it syncs
    before it answers. A request that it does not know is then no violation if it was submitted just before; a request
    that it knows must still be whole. `seen`: when each scheduler process was last seen alive. `faults`: the number of
    faults under open streams.
    """

    losses: Sequence[float] = ()
    seen: Mapping[int, float] = field(default_factory=dict)
    faults: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The replayed histories and all violations; there are none if all rules held."""

    clients: ClientHistory
    pool: PoolHistory
    violations: list[Violation]

    def count(self, *rules: str) -> int:
        return sum(violation.rule in rules for violation in self.violations)


def check(
    records: Iterable[Record],
    transactions: Iterable[Transaction],
    least: Least = Least(),
    known: Circumstances = Circumstances(),
) -> Verdict:
    """Check both histories; to be called when all requests should have ended."""
    clients, pool = client_history.replay(records), pool_history.replay(transactions)
    clients.check_finished()
    pool.check_finished()
    found = clients.violations + pool.violations
    for number, request in clients.requests.items():
        found += _compare(number, request, pool, known.losses)
    found += _living(pool, known.seen)
    found += _too_little(clients, pool, least, known.faults)
    return Verdict(clients, pool, found)


def _compare(number: int, request: ClientRequest, pool: PoolHistory, losses: Sequence[float]) -> Iterable[Violation]:
    """A client got of each choice what was committed, and all of it if the choice ended."""
    if not request.pool_id and request.done and not request.error:
        yield Violation("lost", f"client's request {number}: [DONE] came, no event had an id")
    forgotten = any(request.submitted <= loss <= request.submitted + FORGOTTEN for loss in losses)
    for index, choice in enumerate(request.choices):
        if not request.pool_id:
            continue  # the request was never accepted
        id = f"{request.pool_id}/{index}"
        sequence = pool.sequences.get(id)
        if sequence is None:
            if not forgotten:
                yield Violation("lost", f"client's request {number}: the pool never heard of {id}")
            continue
        committed = sequence.tokens if choice.ends else sequence.tokens[: len(choice.tokens)]
        if choice.tokens != committed:
            what = f"choice {index} of {id}: got {choice.tokens}, committed {committed}"
            yield Violation("wrong", f"client's request {number}: {what}")


def _living(pool: PoolHistory, seen: Mapping[int, float]) -> Iterable[Violation]:
    """An owner that lost its seat before its lease ended, because it was reported dead, was not seen alive later."""
    for taken in pool.leases.takeovers:
        if seen.get(taken.pid, 0.0) > taken.time:
            later = seen[taken.pid] - taken.time
            what = (
                f"{taken.seat} was taken from {taken.epoch!r} as dead, but process {taken.pid} lived {later:.1f} s on"
            )
            yield Violation("takeover", what)


def _too_little(clients: ClientHistory, pool: PoolHistory, least: Least, faults: int) -> Iterable[Violation]:
    answered = sum(request.done and not request.error for request in clients.requests.values())
    committed = sum(len(sequence.tokens) for sequence in pool.sequences.values())
    counted = (("answers", answered, least.requests), ("committed tokens", committed, least.tokens))
    for what, count, needed in (*counted, ("faults under open streams", faults, least.faults)):
        if count < needed:
            yield Violation("too little", f"{count} {what}, at least {needed} are needed for a verdict")
