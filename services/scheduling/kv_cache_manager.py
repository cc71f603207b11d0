"""KVCacheManager: the KV blocks of the scheduler's requests, and how many of them a request takes when it starts."""

from __future__ import annotations

from collections.abc import Sequence

from services.scheduling.block_pool import BlockPool
from services.scheduling.knobs import Knobs
from services.scheduling.request_entry import RequestEntry

SCARCE = 8  # drafts get no new blocks while only one block in so many is free


class KVCacheManager:
    """Gives blocks to requests and takes them back, finds cached prefixes, and keeps what the engine has to be told.

    A request takes blocks for prompt + max_new_tokens when it starts, or for the model's length if that is shorter, and
    never lacks one afterwards (paper, Algorithm 1, line 24). Or, on demand, for its current tokens, and more as they
    fill.
    """

    def __init__(self, blocks: BlockPool, knobs: Knobs) -> None:
        self.blocks = blocks
        self.step = 0  # the last iteration that was selected, or is being selected
        self.whole = knobs.admission == "reserve"  # a request takes blocks for its whole length
        self._naming, self._sharing = not knobs.whole_prompts, knobs.prefix_caching
        self._released: list[str] = []  # requests that the engine has to forget
        self._extended: list[RequestEntry] = []  # requests with blocks that the engine does not know
        self._queries = self._hits = 0  # prompt tokens since the counters were last taken

    def fits(self, entry: RequestEntry, num_running: int, ending: Sequence[RequestEntry] = ()) -> bool:
        """Return whether the blocks that the request needs to start, or to continue, are free, or would be if the
        requests `ending` gave theirs back.
        """
        if entry.capacity:  # if nothing runs and no block is free, a paused request gives up its own blocks
            return entry.num_tokens <= entry.capacity or self.blocks.free > 0 or not num_running
        needed, margin = self.num_blocks(entry), self.margin(num_running)
        return self.blocks.fits(self._find_cached(entry), needed, margin, [e.id for e in ending])

    def num_blocks(self, entry: RequestEntry) -> int:
        """Return how many blocks the request takes when it starts."""
        return self.blocks.blocks_for(entry.max_tokens if self.whole else entry.num_tokens)

    def margin(self, num_running: int) -> int:
        """Return how many blocks must stay free when a request starts beside `num_running` others: on demand one for
        each, so that a request is not preempted just after it has started.
        """
        return 0 if self.whole else num_running

    def keep_cached(self, entry: RequestEntry) -> None:
        """Reuse the cached blocks of the request's prefix after all others: it will start soon."""
        self.blocks.touch(self._find_cached(entry))

    def start(self, entry: RequestEntry) -> None:
        """Give the request its first blocks, cached ones first. They must fit."""
        cached, needed, size = self._find_cached(entry), self.num_blocks(entry), self.blocks.block_size
        self.blocks.allocate(entry.id, cached, needed)
        entry.begin(needed * size, len(cached) * size)
        entry.num_published_blocks = len(cached)
        if self._naming:
            entry.publish_at = (len(cached) + 1) * size
        if entry.num_cached_tokens is None:
            entry.num_cached_tokens = min(len(cached) * size, len(entry.prompt))
            self._queries += len(entry.prompt)
            self._hits += entry.num_cached_tokens

    def extend(self, entry: RequestEntry) -> None:
        """Give the request one more block, which must be free."""
        self.blocks.extend(entry.id, 1)
        entry.capacity += self.blocks.block_size
        self._extended.append(entry)

    def extend_for_drafts(self, entry: RequestEntry) -> None:
        """Give the request one more block, if many are free."""
        if self.blocks.free > self.blocks.num_blocks // SCARCE:
            self.extend(entry)

    def publish(self, entry: RequestEntry, computed: int | None = None) -> None:
        """Let other requests share its full blocks, as far as their tokens are known. If the request is part of the
        iteration that is being selected, `computed` is the number of its tokens that earlier ones compute.
        """
        size, step, in_flight = self.blocks.block_size, self.step, entry.num_in_flight
        if computed is None:
            computed = entry.num_computed_tokens
        else:
            step, in_flight = step - 1, in_flight - 1
        earlier = step if in_flight else 0  # the latest iteration that may compute these tokens
        full = min(entry.num_computed_tokens, entry.num_known_tokens) // size
        if full > entry.num_published_blocks:
            hashes = entry.block_hashes.first(full, entry.prompt, entry.output)
            for index in range(entry.num_published_blocks, full):
                filled_by = earlier if (index + 1) * size <= computed else self.step
                self.blocks.publish(entry.id, index, hashes[index], filled_by)
            entry.num_published_blocks = full
        entry.publish_at = (entry.num_published_blocks + 1) * size

    def free(self, entry: RequestEntry, failed: bool = False) -> int:
        """Take back all blocks of the request, and return their number. Full blocks stay in the prefix cache, unless
        the request failed: then the engine erases its blocks; or no other one may use them.
        """
        if failed or not self._sharing:
            self.blocks.unpublish(entry.id)
        elif entry.num_computed_tokens >= entry.publish_at:
            self.publish(entry)
        if entry.num_blocks_sent >= 0:
            self._released.append(entry.id)
        return self.blocks.release(entry.id)

    def _find_cached(self, entry: RequestEntry) -> list[int]:
        """Return the cached blocks of its prefix. At least one token is left to compute, because its logits are needed.
        If log probabilities of the prompt are needed, so are the logits of all its tokens.
        """
        if not self._naming or entry.needs_prompt_logprobs or entry.distrusts_cache:
            return []
        full = (entry.num_tokens - 1) // self.blocks.block_size
        return self.blocks.find(entry.block_hashes.first(full, entry.prompt, entry.output))

    # --- for the engine and the metrics ----------------------------------------------------------------------

    def take_unsent_blocks(self, entry: RequestEntry) -> list[int]:
        """Return the blocks of the request that the engine does not know, and count them as sent."""
        table = self.blocks.table(entry.id)
        new, entry.num_blocks_sent = table[max(0, entry.num_blocks_sent) :], len(table)
        return new

    def take_extended(self) -> list[RequestEntry]:
        """Return the requests that got more blocks since the last call."""
        extended, self._extended = self._extended, []
        return list(dict.fromkeys(extended))

    def take_released(self) -> list[str]:
        """Return the requests that the engine has to forget."""
        released, self._released = self._released, []
        return released

    def take_counters(self) -> dict[str, float]:
        counters = {
            "vllm:prefix_cache_queries": float(self._queries),
            "vllm:prefix_cache_hits": float(self._hits),
        }
        self._queries = self._hits = 0
        return counters
