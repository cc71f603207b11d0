"""Scheduler: which requests run in the next iteration. The paper's Algorithm 1, line by line where it says so.

| paper | here |
|---|---|
| `request_pool` | the requests claimed from the pool: `Lineup.waiting` (INITIATION, never selected) and `.running` |
| `max_bs` | `Knobs.max_batch_size` |
| `n_slots` | `num_blocks * block_size` |
| `n_rsrv` | `BlockPool.held` (blocks) |
| `n_workers` | `Knobs.batches_in_flight` |
| `n_scheduled` | `len(_flights)` |
| `req.max_tokens` | `Entry.last`: prompt + `max_new_tokens` |
| state RUNNING (line 7) | `Entry.flights` > 0: between `select` and `update` |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from time import monotonic

from services.messages import Claim, Commit, End, EngineFigures, Iteration, IterationResult, Room
from services.requests import FinishReason
from services.scheduling.block_pool import BlockPool
from services.scheduling.budget import Budget
from services.scheduling.cost_model import CostModel
from services.scheduling.in_flight import Flight
from services.scheduling.knobs import Knobs
from services.scheduling.line_budget import LineBudget
from services.scheduling.order import Fcfs, Priority
from services.scheduling.outbox import Outbox
from services.scheduling.prefix import PrefixKeys
from services.scheduling.refusal import refusal
from services.scheduling.request_entry import Entry
from services.scheduling.request_queues import Lineup
from services.scheduling.stopping import Rules
from services.text import TextTables


class Scheduler:
    """Iteration-level scheduling. With the knobs' defaults it is first-come-first-served over whole prompts: a request
    holds blocks for its whole length from its first selection to its end, so one that has started runs to its end.
    """

    def __init__(
        self,
        *,
        epoch: str,
        figures: EngineFigures,
        knobs: Knobs,
        eos_token_ids: Iterable[int] = (),
        text: TextTables | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`text` may be None where no request has stop strings or stop token ids that give text. `now` is the clock of
        TTFT targets, in seconds."""
        self.epoch = epoch
        self.knobs = knobs
        self.blocks = BlockPool(figures.num_blocks, figures.block_size)
        self._figures = figures
        self._rules = Rules(figures.max_model_len, frozenset(eos_token_ids), text)
        self._now = now
        self._cost = CostModel()
        self._usual, self._for_lines = Budget(knobs, self._cost), LineBudget(knobs, self._cost)
        self._budget = self._usual
        order = Fcfs() if knobs.order == "fcfs" else Priority(self._cost, self._usual, now)
        self._lineup = Lineup(self.blocks, knobs, order)
        self._entries: dict[str, Entry] = {}  # those in the lineup
        self._flights: deque[Flight] = deque()
        self._outbox = Outbox()
        self._step = 0

    # --- what comes in ---------------------------------------------------------------------------------------

    def add(self, claims: list[Claim]) -> None:
        """Take charge of requests. One that can never run here, or has ended, ends at once and is committed so.

        A claim of a request that is here already replaces it: a pool that lost its tail gives out again what it no
        longer knows to be given.
        """
        self.drop([claim.id for claim in claims if claim.id in self._entries or self._outbox.find(claim.id)])
        for claim in claims:
            salt = "" if self.knobs.share_prefixes else claim.tenant
            entry = Entry(claim, self._rules, PrefixKeys(salt, self.blocks.block_size), self._now())
            self._entries[claim.id] = entry
            if reason := claim.unreadable or refusal(entry, self._figures):
                self._end(entry, End(FinishReason.ERROR, error=reason))
            elif entry.end:
                self._end(entry, entry.end)
            else:
                self._lineup.add(entry)

    def cancel(self, ids: list[str]) -> None:
        """End these requests now, in whatever state they are; unknown ids are those that have ended already.

        A token that an iteration in flight samples for them is dropped. Blocks freed here can be placed again at
        once, because the engine runs iterations in order.
        """
        for id in ids:
            if entry := self._entries.get(id):
                self._end(entry, End(FinishReason.CANCELLED))
        if ids:
            self._lineup.sweep()

    def drop(self, ids: list[str]) -> None:
        """Forget requests that are not this scheduler's any more: nothing of them is committed."""
        for id in ids:
            if entry := self._entries.pop(id, None):
                self._lineup.leave(entry)
            self._outbox.drop(id)
        if ids:
            self._lineup.sweep()

    def rewind(self, have: dict[str, int]) -> int:
        """Of these requests the pool has so many output tokens, fewer than the last commits took for granted: commit
        again from there, also what had ended meanwhile. Returns how many tokens that were sent go again.

        A request whose log probabilities are not all here is set back to what the pool has and computed from there;
        being a function of the request alone, its tokens come out the same.
        """
        resent = 0
        for id, count in have.items():
            entry = self._entries.get(id) or self._outbox.find(id)
            if entry is None:
                continue
            resent += entry.sent - count
            if entry.rewind(count):
                self._outbox.put(entry)
            else:
                self.drop([id])
                self.add([entry.as_claim(count)])
        return resent

    def update(self, result: IterationResult) -> None:
        """Take the oldest iteration's tokens and judge each (lines 10 to 15: what has finished gives its slots back).

        The token of a request that was preempted meanwhile counts; that of one that ended does not.
        """
        assert self._flights, f"no iteration is in flight, got a result of {result.step = }"
        flight = self._flights.popleft()
        assert (result.epoch, result.step) == (self.epoch, flight.step), f"{flight.step = } {result.step = }"
        self._cost.finished(flight.tokens, flight.pairs, result.elapsed)
        tokens, failed = result.tokens, result.failed
        ended = 0
        for entry in flight.entries:
            if entry.gone:  # it ended, or was cancelled, dropped or set back, while in flight
                continue
            entry.flights -= 1
            if entry.id in failed:
                self._end(entry, End(FinishReason.ERROR, error=failed[entry.id]), failed=True)
                ended += 1
            elif entry.id not in flight.partial:
                end = entry.append(tokens[entry.id], result)
                self._outbox.put(entry)
                if end:
                    self._end(entry, end)
                    ended += 1
        if ended:
            self._lineup.sweep()

    def _end(self, entry: Entry, end: End, failed: bool = False) -> None:
        entry.end = end
        del self._entries[entry.id]
        self._lineup.leave(entry, failed)
        self._outbox.put(entry)

    # --- what goes out ---------------------------------------------------------------------------------------

    def select(self) -> Iteration | None:
        """The next iteration; None when nothing can run, or as many as may be are in flight (lines 4 to 9)."""
        if len(self._flights) >= self.knobs.depth:
            return None
        flight, closed = Flight(self._step + 1), self._closed()
        if not closed:
            self._lineup.hold_lines(self._now())
        self._budget = self._for_lines if self._lineup.lines_alone else self._usual
        self._budget.begin()
        suspect = self._lineup.suspect()
        if suspect and not closed and self._lineup.fits_now(suspect):
            self._alone(suspect, flight)
        else:
            if not suspect and not closed:
                self._lineup.make_way()
                self._lineup.let_in()
            self._decodes_then_prompts(flight)
            if not closed:
                self._newcomers(flight, only_paused=suspect is not None)
        if not flight.entries:
            assert self._flights or not self._entries or self._lineup.lines_alone, (
                f"none of {list(self._entries)} can run"
            )
            return None
        self._step = flight.step
        flight.tokens, flight.pairs = self._budget.tokens, self._budget.pairs
        self._flights.append(flight)
        return flight.message(self.epoch, self._lineup)

    def _closed(self) -> bool:
        """Whether nobody may join or pass those that run."""
        return False

    def _alone(self, suspect: Entry, flight: Flight) -> None:
        """An iteration of its own shows who kills the engine: if it dies now, the others are not blamed. A suspect that
        brought a token is like any other from then on."""
        if not self._flights:
            if not suspect.active:
                self._lineup.enter(suspect)
            self._chunk(flight, suspect)

    def _decodes_then_prompts(self, flight: Flight) -> None:
        """Who runs already, each with one token or a chunk of what it lacks (lines 19 to 22)."""
        lookahead, lineup, put = self.knobs.lookahead, self._lineup, flight.put_decode
        prompts, left, context = [], self._budget.decodes(self.knobs.max_batch_size), 0
        for entry in lineup.running.copy():
            tokens, computed = entry.num_tokens, entry.num_computed_tokens
            if (entry.flights and not lookahead) or tokens >= entry.last:
                continue
            if tokens - computed > 1:
                prompts.append(entry)
                continue
            if not left:
                break
            if computed >= entry.capacity and not (entry.active and lineup.grow(entry)):
                continue
            put(entry)
            left -= 1
            context += computed
            if computed >= entry.next_full:
                lineup.publish(entry)
        self._budget.took(len(flight.entries), context)
        for entry in prompts:
            if len(flight.entries) < self.knobs.max_batch_size and entry.active:
                self._chunk(flight, entry)

    def _newcomers(self, flight: Flight, only_paused: bool) -> None:
        """Who waits, by rank, to the first that does not fit (lines 23 to 26). Those that paused have their blocks, and
        go on also behind one that lacks them."""
        for entry in self._lineup.waiting.copy():
            if self._lineup.full or len(flight.entries) >= self.knobs.max_batch_size or not self._budget.left():
                return
            if entry.line and self._lineup.lines_wait:
                return  # so do all behind it
            if only_paused and not entry.capacity:
                continue
            if entry.flights and not (self.knobs.lookahead and entry.capacity and entry.num_tokens < entry.last):
                only_paused = True  # it is on its way back
            elif self._lineup.fits_now(entry):
                if self._lineup.enter(entry):
                    self._chunk(flight, entry)
            else:
                only_paused = True

    def _chunk(self, flight: Flight, entry: Entry) -> None:
        computed = entry.num_computed_tokens
        count = self._budget.chunk(computed, entry.num_tokens - computed)
        if count:
            flight.put(entry, count)
            if computed + count >= entry.next_full:
                self._lineup.publish(entry)

    def take_commits(self) -> list[Commit]:
        """Tokens and ends since the last call, one commit a request, in the order it came about."""
        return self._outbox.take()

    def has_commits(self) -> bool:
        return bool(self._outbox)

    def has_only_lines(self) -> bool:
        """Whether only lines of batches are here."""
        return self._lineup.lines_alone

    def wait_time(self) -> float:
        """Seconds until lines of batches may run, which wait for nothing else; infinite where none do."""
        return self._lineup.rest(self._now())

    def held(self) -> list[str]:
        """All it is in charge of, also what has ended but may have to be committed again."""
        return list(dict.fromkeys([*self._entries, *self._outbox.ids()]))

    def room(self) -> Room:
        """What can be claimed now: what is free, and what iterations in flight will free by ending requests by length,
        less what requests that wait here will take."""
        closing = [entry for flight in self._flights for entry in flight.closing if not entry.gone]
        return self._lineup.room(closing)

    def gauges(self) -> dict[str, float]:
        """How full it is: `kv_usage`, the share of KV blocks that are held, 0 to 1; `paused` requests, which hold some
        and do not run; `token_budget`, the most an iteration can take, where it is limited."""
        most = self._usual.most
        paused = sum(entry.capacity > 0 for entry in self._lineup.waiting)
        limited = {"token_budget": float(most)} if most < inf else {}
        return {"kv_usage": self.blocks.held / self.blocks.num_blocks, "paused": float(paused)} | limited

    def take_counters(self) -> dict[str, float]:
        """Increments since the last call."""
        return self._lineup.take_counters()
