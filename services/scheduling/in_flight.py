"""Flight: an iteration between `select` and `update`."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.messages import Iteration
from services.scheduling.request_entry import Entry
from services.scheduling.request_queues import Lineup


@dataclass(slots=True)
class Flight:
    step: int
    entries: list[Entry] = field(default_factory=list)  # in batch order
    scheduled: dict[str, int] = field(default_factory=dict)  # tokens to compute, by id
    partial: set[str] = field(default_factory=set)  # those that do not reach the end of their input
    fresh: list[Entry] = field(default_factory=list)  # those the engine does not know
    closing: list[Entry] = field(default_factory=list)  # those whose last allowed token is sampled
    tokens: int = 0
    pairs: int = 0  # of query and key

    def put_decode(self, entry: Entry) -> None:
        """`put` of one token where that is all that is left: what most calls of a busy engine are."""
        self.scheduled[entry.id] = 1
        self.entries.append(entry)
        entry.flights += 1
        entry.num_computed_tokens = tokens = entry.num_tokens
        entry.num_tokens = tokens = tokens + 1
        if entry.told < 0:
            self.fresh.append(entry)
        if tokens >= entry.last:
            self.closing.append(entry)

    def put(self, entry: Entry, count: int) -> None:
        """Compute the next `count` tokens of a request, and sample one where these are all it has."""
        self.entries.append(entry)
        self.scheduled[entry.id] = count
        entry.flights += 1
        if entry.told < 0:
            self.fresh.append(entry)
        entry.num_computed_tokens = computed = entry.num_computed_tokens + count
        if computed < entry.num_tokens:
            self.partial.add(entry.id)
        else:
            entry.num_tokens = tokens = computed + 1
            if tokens >= entry.last:
                self.closing.append(entry)

    def message(self, epoch: str, lineup: Lineup) -> Iteration:
        """What the engine is to hear; what it did not know of the lineup is told now."""
        new, new_blocks = [], {}
        for entry in self.fresh:
            new.append(entry.as_new(entry.num_computed_tokens - self.scheduled[entry.id]))
            new_blocks[entry.id] = lineup.tell(entry)
        for entry in lineup.grown:
            if entry.told >= 0:
                new_blocks[entry.id] = lineup.tell(entry)
        lineup.grown.clear()
        released, lineup.released = lineup.released, []
        return Iteration(epoch, self.step, self.scheduled, new, new_blocks, released)
