"""How much one pool holds, of all tenants and of each, and who waits before whom."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from services.requests import BATCH_CLASS

# Seconds (about 95 years) that lines of batches are ranked behind all others. A rank in microseconds stays below 2**53,
# up to which the server's numbers are exact.
BEHIND = 3e9


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that may be in a pool: sequences that wait, tokens of their prompts, streams (groups that have not ended
    and for which a client waits: not in the background, no lines of batches), bytes of groups, ended groups. 0: no
    bound."""

    waiting: int = 0
    waiting_tokens: int = 0
    streams: int = 0
    bytes: int = 0
    stored: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a pool as in `Bounds`, seconds an ended group stays readable, seconds (`grace`) a resumable group, or
    one whose gateway died, goes on without a follower.

    Groups that ended make place earlier when the bytes are needed, or when there are more than `max_stored`. A tenant
    has at most `tenant_share` of each bound, unless `tenants` says otherwise of it: what is not 0 there is its own.

    A request that a client waits for does not enter where it would wait longer than `max_queue_wait` seconds (0: any
    time), as fast as its tenant's are claimed while some wait. Where that is not known, because few were: where it
    waits behind one that has waited for so long.

    Tenants take turns by tokens served. `order` ranks what waits of one of them, once, at submit. `fcfs`: by arrival.
    `priority`: by a virtual due time, arrival + class x `ageing` seconds + TTFT target, which is `ttft_target` seconds
    where a request has none. So within a class the least slack goes first, and what has waited `ageing` longer goes
    before the next earlier class. Lines of batches (`BATCH_CLASS`) are ranked behind all others in either order, and
    among each other by arrival.
    """

    max_waiting: int = 10_000
    max_bytes: int = 1 << 30
    keep_ended: float = 600.0
    grace: float = 60.0
    order: Literal["fcfs", "priority"] = "fcfs"
    ageing: float = 60.0
    ttft_target: float = 10.0
    max_waiting_tokens: int = 0
    max_streams: int = 0
    max_stored: int = 0
    max_queue_wait: float = 0.0
    tenant_share: float = 1.0
    tenants: dict[str, Bounds] = field(default_factory=dict)

    @property
    def bounds(self) -> Bounds:
        """Of all tenants."""
        return Bounds(self.max_waiting, self.max_waiting_tokens, self.max_streams, self.max_bytes, self.max_stored)

    def bounds_of(self, tenant: str) -> Bounds:
        """A tenant's own; 0 where that of all tenants is as near."""
        given = self.tenants.get(tenant, Bounds())
        own = {}
        for bound in fields(Bounds):
            most = getattr(self.bounds, bound.name)
            share = max(1, int(self.tenant_share * most)) if most else 0
            own_most = getattr(given, bound.name) or share
            own[bound.name] = 0 if own_most >= most > 0 else own_most
        return Bounds(**own)


def behind(priority: int) -> float:
    """Seconds that a request of this class is ranked behind its place."""
    return BEHIND if priority >= BATCH_CLASS else 0.0
