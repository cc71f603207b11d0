"""The bounds of a pool, for all tenants together and for each, and the order of waiting requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

# Seconds (about 95 years) added to the rank of lines of batches, which puts them behind all other requests. Ranks in
# microseconds stay below 2**53, up to which the server's numbers are exact.
BEHIND = 3e9


class Bounds(NamedTuple):
    """The most that may be in a pool; 0 for no bound.

    `waiting`, `waiting_tokens`: sequences that wait and tokens of their prompts. `streams`: groups that have not ended
    and for which a client waits, that is, neither background groups nor lines of batches. `bytes`: bytes of groups.
    `stored`: ended groups.
    """

    waiting: int = 0
    waiting_tokens: int = 0
    streams: int = 0
    bytes: int = 0
    stored: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a pool and the order in which its requests wait.

    The bounds are those of `Bounds`. `keep_ended`: seconds that an ended group stays readable; it is dropped earlier if
    its bytes are needed or if there are more than `max_stored` ended groups. `grace`: seconds that a resumable group,
    or a group whose gateway died, goes on while no gateway listens to it. A tenant may have `tenant_share` of each
    bound, or what `tenants` says for it where that is not 0.

    A request for which a client waits is refused if its expected wait exceeds `max_queue_wait` seconds (0: no limit).
    The expected wait follows from the rate at which the tenant's sequences are claimed while others of them wait. While
    too few were claimed to know that rate, it is at least the time that the sequence at the front of the queue has
    waited. The limit is lower for a tenant whose clients leave earlier, and requests that have waited for longer than
    they do go behind others (`lua/fragments/patience.lua`).

    Tenants take turns by tokens served. `order` ranks the requests of one tenant, once, at submit. `fcfs`: by arrival.
    `priority`: by a virtual due time, arrival + class x `ageing` seconds + TTFT target (`ttft_target` seconds if the
    request has none). Within a class, the request with the least slack goes first; a request that has waited `ageing`
    seconds longer goes before requests of the next earlier class. In both orders, lines of batches (`BATCH_CLASS`) are
    ranked behind all other requests, and by arrival among themselves.
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
        """The bounds of all tenants together."""
        return Bounds(self.max_waiting, self.max_waiting_tokens, self.max_streams, self.max_bytes, self.max_stored)

    def bounds_of(self, tenant: str) -> Bounds:
        """A tenant's own bounds; 0 where the bound of all tenants together is as low."""
        own = []
        for most, given in zip(self.bounds, self.tenants.get(tenant, Bounds()), strict=True):
            own_most = given or (max(1, int(self.tenant_share * most)) if most else 0)
            own.append(0 if own_most >= most > 0 else own_most)
        return Bounds(*own)
