"""Checks the checker: it must find one violation planted in a copy of the run's own histories."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from load.chaos.aof import Transaction
from load.chaos.checker import Verdict, check
from load.chaos.history import Delivery, End, Record

Records = Sequence[Record]
Transactions = Sequence[Transaction]


class NoPlace(Exception):
    """The histories have no place for this violation."""


@dataclass(frozen=True, slots=True)
class Plant:
    """A violation to plant. `put` returns changed copies of the histories, in which `rule` is broken; it may raise
    NoPlace."""

    name: str
    rule: str
    put: Callable[[Records, Transactions, random.Random], tuple[Records, Transactions]]


def missed_plants(verdict: Verdict, records: Records, transactions: Transactions, draw: random.Random) -> list[str]:
    """The planted violations that the checker misses; `verdict` is its verdict on the unchanged histories."""
    missed = []
    for plant in PLANTS:
        try:
            found = check(*plant.put(records, transactions, draw))
        except NoPlace as error:
            missed.append(f"{plant.name}: nowhere to plant it, {error}")
            continue
        if found.count(plant.rule) <= verdict.count(plant.rule):
            missed.append(f"{plant.name}: not found")
    return missed


def _delivery(records: Records, draw: random.Random) -> int:
    """The place of a delivered token which is directly followed by the next token of the same choice, or its end."""
    places = [
        place
        for place, (one, next) in enumerate(pairwise(records))
        if isinstance(one, Delivery) and isinstance(next, Delivery | End) and _follows(one, next)
    ]
    if not places:
        raise NoPlace("no token was directly followed by the next one, or by the end, of its choice")
    return draw.choice(places)


def _follows(one: Delivery, next: Delivery | End) -> bool:
    return (one.request, one.choice, one.index + 1) == (next.request, next.choice, next.index)


def _lost(records: Records, transactions: Transactions, draw: random.Random) -> tuple[Records, Transactions]:
    place = _delivery(records, draw)
    return [*records[:place], *records[place + 1 :]], transactions


def _twice(records: Records, transactions: Transactions, draw: random.Random) -> tuple[Records, Transactions]:
    place = _delivery(records, draw)
    return [*records[: place + 1], *records[place:]], transactions


def _wrong(records: Records, transactions: Transactions, draw: random.Random) -> tuple[Records, Transactions]:
    place = _delivery(records, draw)
    delivered = records[place]
    assert isinstance(delivered, Delivery)
    return [*records[:place], replace(delivered, token=delivered.token + 1), *records[place + 1 :]], transactions


def _order(records: Records, transactions: Transactions, draw: random.Random) -> tuple[Records, Transactions]:
    place = _delivery(records, draw)
    return [*records[:place], records[place + 1], records[place], *records[place + 2 :]], transactions


def _endless(records: Records, transactions: Transactions, draw: random.Random) -> tuple[Records, Transactions]:
    """Remove all ends of one choice; a choice that was sent again may have several."""
    ends = [record for record in records if isinstance(record, End)]
    if not ends:
        raise NoPlace("no choice ended")
    gone = draw.choice(ends)
    same = (gone.request, gone.choice)
    return [r for r in records if not isinstance(r, End) or (r.request, r.choice) != same], transactions


def _takeover(records: Records, transactions: Transactions, draw: random.Random) -> tuple[Records, Transactions]:
    """A seat loses its owner as soon as it has one, under a living lease."""
    grants = [
        (place, command[1])
        for place, transaction in enumerate(transactions)
        for command in transaction.commands
        if b":seat:" in command[1] and b"epoch" in command[2::2] and command[0].upper() == b"HSET"
    ]
    if not grants:
        raise NoPlace("no seat was ever taken")
    place, key = draw.choice(grants)
    taken = replace(transactions[place], commands=[[b"HDEL", key, b"epoch", b"owner", b"lease", b"call", b"said"]])
    return records, [*transactions[: place + 1], taken, *transactions[place + 1 :]]


def _commit_twice(records: Records, transactions: Transactions, draw: random.Random) -> tuple[Records, Transactions]:
    commits = [
        place
        for place, transaction in enumerate(transactions)
        if any(command[0].upper() == b"APPEND" and b":tok:" in command[1] for command in transaction.commands)
    ]
    if not commits:
        raise NoPlace("nothing was committed")
    place = draw.choice(commits)
    return records, [*transactions[: place + 1], *transactions[place:]]


PLANTS = (
    Plant("a token is left out", "lost", _lost),
    Plant("a token comes twice", "duplicated", _twice),
    Plant("another token than committed", "wrong", _wrong),
    Plant("two tokens change places", "lost", _order),
    Plant("a choice never ends", "unfinished", _endless),
    Plant("a seat is taken under a living lease", "takeover", _takeover),
    Plant("an exchange is committed twice", "fence", _commit_twice),
)
