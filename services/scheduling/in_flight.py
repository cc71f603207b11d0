"""InFlight: an iteration between `select` and `update`."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.messages import Iteration
from services.scheduling.kv_cache_manager import KVCacheManager
from services.scheduling.request_entry import RequestEntry


@dataclass(slots=True)
class InFlight:
    step: int
    entries: list[RequestEntry] = field(default_factory=list)  # in batch order
    scheduled: dict[str, int] = field(default_factory=dict)  # tokens to compute, by id
    partial: set[str] = field(default_factory=set)  # requests that do not reach the end of their input
    unsent: list[RequestEntry] = field(default_factory=list)  # requests that the engine does not know
    finishing: list[RequestEntry] = field(default_factory=list)  # requests whose last allowed token is sampled
    num_tokens: int = 0
    num_pairs: int = 0  # of query and key

    def put_decode(self, entry: RequestEntry) -> None:
        """Schedule a request that has one token left to compute. Most calls in a busy engine are these."""
        self.scheduled[entry.id] = 1
        self.entries.append(entry)
        entry.num_in_flight += 1
        entry.num_computed_tokens = tokens = entry.num_tokens
        entry.num_tokens = tokens = tokens + 1
        if entry.num_blocks_sent < 0:
            self.unsent.append(entry)
        if tokens >= entry.max_tokens:
            self.finishing.append(entry)

    def put(self, entry: RequestEntry, count: int) -> None:
        """Schedule the next `count` tokens of a request. A token is sampled if nothing is left after them."""
        self.entries.append(entry)
        self.scheduled[entry.id] = count
        entry.num_in_flight += 1
        if entry.num_blocks_sent < 0:
            self.unsent.append(entry)
        entry.num_computed_tokens = computed = entry.num_computed_tokens + count
        if computed < entry.num_tokens:
            self.partial.add(entry.id)
        else:
            entry.num_tokens = tokens = computed + 1
            if tokens >= entry.max_tokens:
                self.finishing.append(entry)

    def message(self, epoch: str, kv: KVCacheManager, finished: int) -> Iteration:
        """Return the message for the engine, with all requests, blocks and releases that it does not know yet.
        `finished` is the last iteration whose result is known.
        """
        new, new_blocks = [], {}
        for entry in self.unsent:
            new.append(entry.as_new(entry.num_computed_tokens - self.scheduled[entry.id]))
            new_blocks[entry.id] = kv.take_unsent_blocks(entry)
        for entry in kv.take_extended():
            if entry.num_blocks_sent >= 0:
                new_blocks[entry.id] = kv.take_unsent_blocks(entry)
        full_blocks = kv.blocks.take_full(finished)
        return Iteration(epoch, self.step, self.scheduled, new, new_blocks, kv.take_released(), full_blocks)
