"""Scheduler: which requests run in the next iteration. The paper's Algorithm 1, line by line where it says so.

| paper | here |
|---|---|
| `request_pool` | the requests claimed from the pool: `_waiting` (INITIATION, never selected) and `_running` |
| `max_bs` | `max_batch_size` |
| `n_slots` | `num_blocks * block_size` |
| `n_rsrv` | `BlockPool.held` (blocks) |
| `req.max_tokens` | `Request.max_tokens`: prompt + `max_new_tokens` |
| state RUNNING (line 7) | in `_in_flight`: between `select` and `update` |
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from operator import attrgetter

from services.messages import Claim, Commit, End, Iteration, IterationResult, Room
from services.requests import FinishReason
from services.scheduling.block_pool import BlockPool
from services.scheduling.entry import Entry
from services.scheduling.judge import Rules
from services.text import TextTables

_rank = attrgetter("rank")


class Scheduler:
    """Iteration-level first-come-first-served over whole prompts, with `reserve` admission and no preemption.

    One iteration is in flight at a time (the paper's `n_workers` is 1). A request holds blocks for its whole length
    from its first selection to its end, so one that has started can always run to its end.
    """

    def __init__(
        self,
        *,
        epoch: str,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        max_batch_size: int,
        eos_token_ids: Iterable[int] = (),
        text: TextTables | None = None,
    ) -> None:
        """`text` may be None where no request has stop strings or stop token ids that give text."""
        assert max_batch_size > 0, f"{max_batch_size = }"
        self.epoch = epoch
        self.max_batch_size = max_batch_size
        self.blocks = BlockPool(num_blocks, block_size)
        self._rules = Rules(max_model_len, frozenset(eos_token_ids), text)
        self._entries: dict[str, Entry] = {}
        self._waiting: list[Entry] = []  # by arrival, holding no blocks
        self._running: list[Entry] = []  # by arrival, holding blocks
        self._in_flight: Iteration | None = None
        self._batch: list[Entry] = []  # those in flight, in batch order
        self._released: list[str] = []  # the engine is still to be told to forget these
        self._uncommitted: dict[str, Entry] = {}
        self._sent: dict[str, Entry] = {}  # those of the last commits, which the pool may ask for again
        self._step = 0

    # --- what comes in ---------------------------------------------------------------------------------------

    def add(self, claims: list[Claim]) -> None:
        """Take charge of requests. One that can never run here, or has ended, ends at once and is committed so.

        A claim of a request that is here already replaces it: a pool that lost its tail gives out again what it no
        longer knows to be given.
        """
        self.drop([claim.id for claim in claims if self._known(claim.id)])
        for claim in claims:
            entry = self._entries[claim.id] = Entry(claim, self._rules)
            if refusal := self._refuse(entry):
                self._end(entry, End(FinishReason.ERROR, error=refusal))
            elif entry.end:
                self._end(entry, entry.end)
            else:
                insort(self._waiting, entry, key=_rank)

    def _refuse(self, entry: Entry) -> str | None:
        prompt, needed = len(entry.request.prompt), self._reservation(entry)
        if prompt >= self._rules.max_model_len:
            return f"the prompt has {prompt} tokens, the model's length is {self._rules.max_model_len}"
        if needed > self.blocks.num_blocks:
            return f"the request needs {needed} KV blocks, this engine has {self.blocks.num_blocks}"
        return None

    def cancel(self, ids: list[str]) -> None:
        """End these requests now, in whatever state they are; unknown ids are those that have ended already.

        A token that the iteration in flight samples for them is dropped. Blocks freed here can be placed again at
        once, because the engine runs iterations in order.
        """
        for id in ids:
            if entry := self._entries.get(id):
                self._end(entry, End(FinishReason.CANCELLED))
        if ids:
            self._sweep()

    def drop(self, ids: list[str]) -> None:
        """Forget requests that are not this scheduler's any more: nothing of them is committed."""
        for id in ids:
            if entry := self._entries.get(id):
                self._leave(entry)
            self._uncommitted.pop(id, None)
            self._sent.pop(id, None)
        if ids:
            self._sweep()

    def rewind(self, have: dict[str, int]) -> int:
        """Of these requests the pool has so many output tokens, fewer than the last commits took for granted: commit
        again from there, also what had ended meanwhile. Returns how many tokens that were sent go again.

        A request whose log probabilities are not all here is set back to what the pool has and computed from there;
        being a function of the request alone, its tokens come out the same.
        """
        resent = 0
        for id, count in have.items():
            entry = self._known(id)
            if entry is None:
                continue
            resent += entry.sent - count
            if entry.rewind(count):
                self._uncommitted[id] = entry
            else:
                self.drop([id])
                self.add([entry.as_claim(count)])
        return resent

    def update(self, result: IterationResult) -> None:
        """Take an iteration's tokens and judge each (lines 11 to 14: what has finished gives its slots back)."""
        iteration, self._in_flight = self._in_flight, None
        assert iteration is not None, f"no iteration is in flight, got a result of {result.step = }"
        assert (result.epoch, result.step) == (iteration.epoch, iteration.step), f"{iteration.step = } {result.step = }"
        tokens, failed = result.tokens, result.failed
        ended = 0
        for (id, computed), entry in zip(iteration.scheduled.items(), self._batch, strict=True):
            if entry.gone:  # in flight: cancelled, dropped or set back
                continue
            entry.request.num_computed_tokens += computed
            if failed and id in failed:
                end: End | None = End(FinishReason.ERROR, error=failed[id])
            else:
                end = entry.append(tokens[id], result)
                self._uncommitted[id] = entry
            if end:
                self._end(entry, end)
                ended += 1
        if failed:  # the engine has forgotten these itself
            self._released = [id for id in self._released if id not in failed]
        if ended:
            self._sweep()

    def _known(self, id: str) -> Entry | None:
        """The request, also where it ended and the pool has not confirmed that."""
        return self._entries.get(id) or self._uncommitted.get(id) or self._sent.get(id)

    def _end(self, entry: Entry, end: End) -> None:
        entry.end = end
        self._leave(entry)
        self._uncommitted[entry.request.id] = entry

    def _leave(self, entry: Entry) -> None:
        """Take a request's blocks back; `_sweep` then takes it from its list."""
        entry.gone = True
        del self._entries[entry.request.id]
        if self.blocks.release(entry.request.id):
            self._released.append(entry.request.id)

    def _sweep(self) -> None:
        self._waiting = [entry for entry in self._waiting if not entry.gone]
        self._running = [entry for entry in self._running if not entry.gone]
        if not self._entries:
            assert not self._waiting, "requests wait that nobody holds"
            assert not self._running, "requests run that nobody holds"
            self.blocks.check_idle()

    # --- what goes out ---------------------------------------------------------------------------------------

    def select(self) -> Iteration | None:
        """The next iteration; None when nothing can run (lines 4, 5 and 17 to 28)."""
        assert self._in_flight is None, f"iteration {self._step} is in flight"
        admitted = self._admit_suspect()
        if admitted:
            self._batch = [self._entries[id] for id in admitted]
        else:
            admitted = self._admit()
            self._batch = self._running[: self.max_batch_size]
        scheduled = {}
        for entry in self._batch:  # lines 20 to 22
            request = entry.request
            scheduled[request.id] = len(request.prompt) + len(request.output) - request.num_computed_tokens
        if not scheduled:
            assert not self._entries, f"none of {list(self._entries)} can run"
            return None
        self._step += 1
        released, self._released = self._released, []
        new = [self._entries[id].as_new() for id in admitted]
        self._in_flight = Iteration(self.epoch, self._step, scheduled, new, admitted, released)
        return self._in_flight

    def _admit(self) -> dict[str, list[int]]:
        """Start waiting requests in order of arrival, each with all its blocks (lines 21 to 26); their blocks.

        The first that does not fit stops it (line 25). Requests behind it that run already go on: in the paper none
        can be there, here one can, where an earlier request came late because another owner of it died.
        """
        admitted: dict[str, list[int]] = {}
        for entry in self._waiting:
            if entry.suspect or bisect_right(self._running, entry.rank, key=_rank) >= self.max_batch_size:
                break  # line 22
            blocks = self.blocks.reserve(entry.request.id, self._reservation(entry))
            if blocks is None:  # line 25
                break
            insort(self._running, entry, key=_rank)
            admitted[entry.request.id] = blocks
        del self._waiting[: len(admitted)]
        return admitted

    def _admit_suspect(self) -> dict[str, list[int]]:
        """Start the earliest suspect and nothing else; its blocks. None where there is none, or its blocks are held.

        An iteration of its own shows who kills the engine: if it dies now, the others are not blamed. A suspect that
        ran has brought a token (or failed), and is like any other from then on.
        """
        entry = next((entry for entry in self._waiting if entry.suspect), None)
        blocks = self.blocks.reserve(entry.request.id, self._reservation(entry)) if entry else None
        if entry is None or blocks is None:
            return {}
        self._waiting.remove(entry)
        insort(self._running, entry, key=_rank)
        return {entry.request.id: blocks}

    def _reservation(self, entry: Entry) -> int:
        """Blocks for `max_tokens` (line 24), or for the model's length where that ends the request earlier."""
        return self.blocks.blocks_for(len(entry.request.prompt) + entry.judge.last)

    def take_commits(self) -> list[Commit]:
        """Tokens and ends since the last call, one commit a request, in the order it came about."""
        commits = [entry.take_commit() for entry in self._uncommitted.values()]
        self._sent, self._uncommitted = self._uncommitted, {}
        return commits

    def has_commits(self) -> bool:
        return bool(self._uncommitted)

    def held(self) -> list[str]:
        """All it is in charge of, also what has ended but may have to be committed again."""
        return list(self._entries | self._uncommitted | self._sent)

    def room(self) -> Room:
        """What can be claimed now: what is free, and what the iteration in flight will free by ending requests by
        length, less what claimed requests that wait will take."""
        requests = self.max_batch_size - len(self._entries)
        blocks = self.blocks.free - sum(self._reservation(entry) for entry in self._waiting)
        for entry in self._batch if self._in_flight else ():
            if not entry.gone and entry.ends_by_length_next():
                requests += 1
                blocks += self._reservation(entry)
        return Room(max(0, requests), max(0, blocks), self.blocks.block_size)

    def kv_usage(self) -> float:
        """The share of KV blocks that is reserved, 0 to 1."""
        return self.blocks.held / self.blocks.num_blocks
