"""Why the pool does not take a request now, in figures."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Refusal:
    """The bound that a submission would pass.

    `bound`: `waiting` (sequences), `waiting_tokens` (of their prompts), `streams`, `bytes` (of requests that have not
    ended), `queue_wait` (seconds that it is expected to wait), or `message` (bytes in which a request is told to
    the pool). `held` is there, `asked` would come to it, `limit` is the most, of the tenant if `own`, else of all.
    `retry_after`: seconds until there may be place, as fast as things left of late.
    """

    bound: str
    own: bool
    held: int
    asked: int
    limit: int
    retry_after: int = field(default=1, compare=False)

    @property
    def for_good(self) -> bool:
        """It would not fit into an empty pool."""
        return self.asked > self.limit
