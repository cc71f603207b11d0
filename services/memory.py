"""The memory of a machine: which engines may have their weights at the same time, and which one makes room for another.

What an engine takes is known before it loads. An engine that finds no room wishes for it; the others see that. Engines
that are idle go first, the least recently used one before all others. If all are busy, they take turns. Plain logic:
the account of a machine, which holds shares and wishes, is in `actors.memory_account`. Times are those of one clock, in
seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

IDLE = 2.0  # seconds without an iteration after which an engine is idle
FIRST = 10.0  # seconds in which an engine that has loaded may wait for its first iteration


@dataclass(frozen=True, slots=True)
class Share:
    """What an engine of a model has, in bytes. `since`: when it was ready; infinite while it loads. `used`: until when
    it has run iterations, or is given time for the first one."""

    engine: str
    model: str
    bytes: int
    since: float = inf
    used: float = inf


@dataclass(frozen=True, slots=True)
class Wish:
    """What an engine without weights waits for, in bytes, and since when."""

    engine: str
    model: str
    bytes: int
    since: float


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of all engines of a machine. `given`: by the operator; else engines of one model alone are not
    bounded by it. `turn`: seconds after which a busy engine makes room for one that waits."""

    bytes: int
    given: bool
    turn: float

    def fits(self, wish: Wish | Share, shares: Collection[Share]) -> bool:
        """Whether the engine may have what it wants beside the shares of others."""
        others = [share for share in shares if share.engine != wish.engine]
        if not self.given and all(share.model == wish.model for share in others):
            return True
        return wish.bytes + sum(share.bytes for share in others) <= self.bytes

    def first(self, wishes: Collection[Wish], shares: Collection[Share]) -> Wish | None:
        """The wish that is fulfilled next: the oldest one. A model without an engine goes before one that has some, and
        no engine waits behind one for which engines of its own model leave no room."""

        def place(wish: Wish) -> tuple[bool, float, str]:
            return has_engine(wish.model, shares), wish.since, wish.engine

        possible = (wish for wish in wishes if self.fits(wish, [each for each in shares if each.model == wish.model]))
        return min(possible, key=place, default=None)

    def leaving(self, wishes: Collection[Wish], shares: Sequence[Share], now: float) -> set[str]:
        """The engines that have to give back their weights for the first wish; none while that would not suffice.

        Idle ones go first, then those whose turn is over, the longest first. No engine goes for another one of its own
        model, and no busy one for a model that has an engine."""
        wish = self.first(wishes, shares)
        if wish is None:
            return set()

        def idle(share: Share) -> bool:
            return now >= share.used + IDLE

        def may_go(share: Share) -> bool:
            over = now >= share.since + self.turn and not has_engine(wish.model, shares)
            return share.model != wish.model and share.since <= now and (idle(share) or over)

        def place(share: Share) -> tuple[bool, float, str]:
            return not idle(share), share.used if idle(share) else share.since, share.engine

        going: list[Share] = []
        for share in sorted(filter(may_go, shares), key=place):
            if self.fits(wish, _without(shares, going)):
                break
            going.append(share)
        if not self.fits(wish, _without(shares, going)):
            return set()
        for share in [*going]:  # a smaller one before it may go in vain
            if self.fits(wish, _without(shares, [each for each in going if each is not share])):
                going.remove(share)
        return {share.engine for share in going}


def has_engine(model: str, shares: Collection[Share]) -> bool:
    """Whether an engine of this model has a share."""
    return any(share.model == model for share in shares)


def _without(shares: Collection[Share], going: Collection[Share]) -> list[Share]:
    return [share for share in shares if share not in going]
