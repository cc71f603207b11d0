"""The history checker: what clients saw, what the pool did, and that both tell the same story.

It shares no code with the pool, so that an error there is not made here too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from load.chaos import client_history, pool_history
from load.chaos.aof import Transaction
from load.chaos.client_history import ClientHistory, ClientRequest
from load.chaos.history import Record
from load.chaos.pool_history import PoolHistory
from load.chaos.violations import Violation


@dataclass(frozen=True, slots=True)
class Verdict:
    """`violations` is empty where all rules held."""

    clients: ClientHistory
    pool: PoolHistory
    violations: list[Violation]

    def count(self, *rules: str) -> int:
        return sum(violation.rule in rules for violation in self.violations)


def check(records: Iterable[Record], transactions: Iterable[Transaction], keeps_all: bool = True) -> Verdict:
    """To be called when all requests should have ended.

    `keeps_all` false: the pool's server may have forgotten its last second or two when it was killed. What it never
    heard of is then no violation; what it remembers must still be whole.
    """
    clients, pool = client_history.replay(records), pool_history.replay(transactions)
    clients.check_finished()
    pool.check_finished()
    found = clients.violations + pool.violations
    for number, request in clients.requests.items():
        found += _compare(number, request, pool, keeps_all)
    return Verdict(clients, pool, found)


def _compare(number: int, request: ClientRequest, pool: PoolHistory, keeps_all: bool) -> Iterable[Violation]:
    """What a client got of each choice is what was committed; all of it, if the choice ended."""
    for index, choice in enumerate(request.choices):
        if not request.pool_id:
            continue  # it was never accepted
        id = f"{request.pool_id}/{index}"
        sequence = pool.sequences.get(id)
        if sequence is None:
            if keeps_all:
                yield Violation("lost", f"client's request {number}: the pool never heard of {id}")
            continue
        committed = sequence.tokens if choice.ends else sequence.tokens[: len(choice.tokens)]
        if choice.tokens != committed:
            what = f"choice {index} of {id}: got {choice.tokens}, committed {committed}"
            yield Violation("wrong", f"client's request {number}: {what}")
