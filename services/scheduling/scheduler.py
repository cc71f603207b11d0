"""Scheduler: which requests run in the next iteration. It implements Algorithm 1 of the paper.

| paper | here |
|---|---|
| `request_pool` | the claimed requests: `RequestQueues.waiting` (INITIATION, never selected) and `.running` |
| `max_bs` | `Knobs.max_batch_size` |
| `n_slots` | `num_blocks * block_size` |
| `n_rsrv` | `BlockPool.held` (blocks) |
| `n_workers` | `Knobs.batches_in_flight` |
| `n_scheduled` | `len(_in_flight)` |
| `req.max_tokens` | `RequestEntry.max_tokens`: prompt + `max_new_tokens` |
| state RUNNING (line 7) | `RequestEntry.num_in_flight` > 0: between `select` and `update` |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf
from time import monotonic, time

from services.messages import Claim, Commit, End, EngineFigures, Iteration, IterationResult, Room
from services.requests import FinishReason
from services.scheduling.batch_builder import BatchBuilder, InFlight
from services.scheduling.block_pool import BlockHashes, BlockPool
from services.scheduling.budget import Budget
from services.scheduling.cost_model import CostModel, WarmUpTime
from services.scheduling.drafts import Drafter
from services.scheduling.knobs import Knobs
from services.scheduling.kv_cache_manager import KVCacheManager
from services.scheduling.last_class import CLAIM_INTERVAL
from services.scheduling.order import Fcfs, Priority
from services.scheduling.reading import Reading
from services.scheduling.request_entry import RequestEntry
from services.scheduling.request_queues import RequestQueues
from services.scheduling.stopping import StopRules
from services.text import TextTables

LONG = 0.03  # seconds of an iteration from which on an exchange before its end is worth its processor time
AHEAD, MARGIN = 0.005, 0.05  # how long before the estimated end it begins: seconds, and a share of the iteration
MIXED = 10.0  # seconds since the last change of tenants between two claims, for which tenants count as sharing;
# and since the last claim of a tenant with few requests here, for which iterations are brief


class Scheduler:
    """Iteration-level scheduling. With default knobs, it is first-come-first-served over whole prompts, and a request
    holds blocks for its whole length from its first selection on, so every request that has started runs to its end.
    """

    def __init__(
        self,
        *,
        epoch: str,
        figures: EngineFigures,
        knobs: Knobs,
        eos_token_ids: Iterable[int] = (),
        text: TextTables | None = None,
        warm_up: WarmUpTime | None = None,
        cost: CostModel | None = None,
        now: Callable[[], float] = monotonic,
        cached_blocks: Mapping[int, bytes] | None = None,
    ) -> None:
        """`text` may be None if no request has stop strings or stop token ids with text. `cost` may have learned from
        earlier iterations of such an engine; `warm_up` is what is known otherwise. `now` is the clock of TTFT targets,
        in seconds. `cached_blocks` are the names of full blocks that the engine has from an earlier owner.
        """
        self.epoch = epoch
        self.knobs = knobs
        cached = None if knobs.whole_prompts else cached_blocks
        self.blocks = BlockPool(figures.num_blocks, figures.block_size, cached)
        self._figures = figures
        self._rules = StopRules(figures.max_model_len, frozenset(eos_token_ids), text)
        self._now = now
        self._cost = cost or CostModel()
        if warm_up and not self._cost.known:
            self._cost.warmed_up(warm_up)
        self._budget = Budget(knobs, self._cost)
        order = Fcfs() if knobs.order == "fcfs" else Priority(self._cost, self._budget, now)
        self._kv = KVCacheManager(self.blocks, knobs)
        self._queues = RequestQueues(self._kv, knobs, order, figures)
        self._drafter = Drafter(knobs, self._cost, self._kv) if knobs.num_speculative_tokens else None
        self._builder = BatchBuilder(knobs, self._budget, self._cost, self._queues, self._kv, self._drafter)
        self._reading = Reading(now)
        self._entries: dict[str, RequestEntry] = {}  # all requests in the queues, and those that wait for an adapter
        self._in_flight: deque[InFlight] = deque()
        self._outbox = Outbox()
        self._few_at = -inf  # the last claim of a tenant with few requests here
        self._tenant, self._mixed_at = "", -inf  # of the last claim; when it was another one's than that before
        self._step = self._finished = 0  # the last iterations that were selected, and that have a result

    # --- requests from the pool ------------------------------------------------------------------------------

    def add(self, claims: list[Claim]) -> None:
        """Take over claimed requests. A request that can never run here, or has already ended, ends at once, and its
        end is committed.

        A claim of a request that is already here replaces it: a pool that has lost its last changes gives out requests
        again.
        """
        self.drop([claim.id for claim in claims if claim.id in self._entries or self._outbox.find(claim.id)])
        for claim in claims:
            if self._tenant and claim.tenant != self._tenant:
                self._mixed_at = self._now()
            self._tenant = claim.tenant
            hashes = BlockHashes(self._salt(claim), self.blocks.block_size)
            entry = RequestEntry(claim, self._rules, hashes, self._now())
            self._entries[claim.id] = entry
            if reason := claim.unreadable or entry.refusal(self._figures):
                self._end(entry, End(FinishReason.ERROR, error=reason))
            elif entry.end:
                self._end(entry, entry.end)
            elif not self._reading.hold(entry):
                self._enter(entry)

    def _enter(self, entry: RequestEntry) -> None:
        self._queues.add(entry)
        if self._queues.has_few(entry):
            self._few_at = self._now()
        self._kv.keep_cached(entry)

    def _salt(self, claim: Claim) -> str:
        """Return what keeps the request's prefixes apart from others: its tenant, a name without NUL, the digest
        of its adapter, with which the same tokens have other keys, and its salt. Without prefix caching it is the
        request's id: its own blocks are found by the next owner, and not for another request."""
        if not self.knobs.prefix_caching:
            return claim.id
        whose, own = "" if self.knobs.share_prefixes else claim.tenant, claim.sampling
        return f"{whose}\0{own.adapter}\0{own.cache_salt}" if own.adapter or own.cache_salt else whose

    def cancel(self, ids: list[str]) -> None:
        """End these requests now, in whatever state they are. Unknown ids are requests that have already ended.

        Tokens that iterations in flight sample for them are dropped. Their blocks can be reused at once, because the
        engine runs iterations in order.
        """
        for id in ids:
            if entry := self._entries.get(id):
                self._end(entry, End(FinishReason.CANCELLED))
        if ids:
            self._queues.sweep()

    def drop(self, ids: list[str]) -> None:
        """Remove requests that do not belong to this scheduler any more. Nothing of them is committed."""
        for id in ids:
            if entry := self._entries.pop(id, None):
                self._queues.remove(entry)
            self._outbox.drop(id)
        self.forget(ids)
        if ids:
            self._queues.sweep()

    def forget(self, ids: list[str] | None) -> None:
        """Let no draft repeat the texts of these requests, which somebody has deleted, or which are not kept any more.
        None: of all requests."""
        if self._drafter and ids is None:
            self._drafter.recent.clear()
        elif self._drafter and ids:
            for id in ids:
                self._drafter.recent.forget(id)

    def rewind(self, have: dict[str, int]) -> int:
        """Commit requests again of which the pool has lost output tokens: `have` is the number that it has of each.
        Requests that have ended since are included. Returns how many tokens are resent.

        If log probabilities of a request are missing here, the request is reset to the state of the pool and computed
        again. Its tokens are the same, because they depend on the request alone.
        """
        resent = 0
        for id, count in have.items():
            entry = self._entries.get(id) or self._outbox.find(id)
            if entry is None:
                continue
            resent += entry.num_output_sent - count
            if entry.rewind(count):
                self._outbox.put(entry)
            else:
                self.drop([id])
                self.add([entry.as_claim(count)])
                if again := self._entries.get(id):
                    again.num_cached_tokens = entry.num_cached_tokens
        return resent

    # --- iterations ------------------------------------------------------------------------------------------

    def select(self) -> Iteration | None:
        """Return the next iteration; None if nothing can run, or if enough iterations are in flight (lines 4 to 9).

        The batch is decided anew before each iteration: a request that ends leaves at once, and one that comes waits
        for one iteration. There is no phase of prompts and no phase of decodes. Each request has `num_tokens` tokens,
        of which `num_computed_tokens` are computed. An iteration gives each request some of the tokens in between, and
        a request whose last token is among them gets one more: its next output token.

        `BatchBuilder.fill` gives out tokens in this order, while places, KV blocks and the budget last: one token to
        each request that decodes; chunks of the prompts of running requests; requests that wait, by rank; drafts.
        Before that, an earlier request may take the place of a later one (`preempt_for_first`), and a tenant that runs
        nothing takes one of the tenant that runs most (`admit_guests`). Two kinds of requests stand apart: lines of
        batches run while nothing else is here (`hold_lines`), and a request that may have killed engines runs alone.
        """
        if len(self._in_flight) >= self.knobs.depth:
            return None
        for entry in self._reading.take(all=not self._in_flight and (not self._queues or self._queues.only_lines)):
            self._enter(entry)
        batch, closed = InFlight(self._step + 1), self._closed()
        self._kv.step = batch.step
        self._budget.brief = self._now() <= self._few_at + MIXED
        if not closed:
            self._queues.hold_lines(self._now())
        self._builder.fill(batch, closed, nothing_in_flight=not self._in_flight)
        if not batch.entries:
            assert self._in_flight or not self._entries or self._queues.only_lines, (
                f"none of {list(self._entries)} can run"
            )
            return None
        self._step = batch.step
        self._in_flight.append(batch)
        message = batch.message(self.epoch, self._kv, self._finished, wants_forced=self._drafter is not None)
        wanted = self._reading.wanted()
        return replace(message, adapters=wanted) if wanted else message

    def sleep(self) -> Iteration:
        """Return the iteration with which the engine gives back the memory of its KV cache. No request may be here, and
        no prefix is cached from now on."""
        assert not self._entries, f"{list(self._entries)} are here"
        assert not self._in_flight, "an iteration is in flight"
        self.blocks.forget_all()
        batch = InFlight(self._step + 1)
        self._step = batch.step
        self._in_flight.append(batch)
        return replace(batch.message(self.epoch, self._kv, self._finished, wants_forced=False), sleep=True)

    def _closed(self) -> bool:
        """Return whether no request may join or preempt the running ones."""
        return False

    def update(self, result: IterationResult) -> None:
        """Take the tokens of the oldest iteration in flight, and end the requests that stop with them, which frees
        their blocks (lines 10 to 15).

        The token of a request that was preempted in the meantime counts; that of a request that ended does not.
        """
        assert self._in_flight, f"no iteration is in flight, got a result of {result.step = }"
        batch = self._in_flight.popleft()
        assert (result.epoch, result.step) == (self.epoch, batch.step), f"{batch.step = } {result.step = }"
        self._finished = batch.step
        if result.adapters:
            self._reading.arrived(result.adapters)
        if batch.entries:
            self._cost.finished(batch.num_tokens, batch.num_pairs, result.elapsed)
        failed = result.failed
        ended = 0
        for entry in batch.entries:
            if entry.removed:  # it ended, or was cancelled, dropped or reset, while in flight
                continue
            entry.num_in_flight -= 1
            if entry.id in failed:
                self._end(entry, End(FinishReason.ERROR, error=failed[entry.id]), failed=True)
                ended += 1
            elif entry.id not in batch.partial:
                if self._drafter and entry.id in batch.drafts:
                    self._drafter.learn(entry, len(batch.drafts[entry.id]), result)
                end = entry.append(result)
                if self._drafter and entry.id in result.forced:
                    self._drafter.of(entry).force(result.forced[entry.id])
                self._outbox.put(entry)
                if end:
                    self._end(entry, end)
                    ended += 1
        if ended:
            self._queues.sweep()

    def _end(self, entry: RequestEntry, end: End, failed: bool = False) -> None:
        entry.end = replace(end, at=time())
        del self._entries[entry.id]
        self._queues.remove(entry, failed)
        self._outbox.put(entry)

    # --- for the pool ----------------------------------------------------------------------------------------

    def take_commits(self) -> list[Commit]:
        """Return tokens and ends since the last call, one commit per request, in the order in which they came."""
        return self._outbox.take()

    def has_commits(self) -> bool:
        """Return whether there are tokens or ends to commit."""
        return bool(self._outbox)

    def claim_interval(self) -> float:
        """Return the most seconds between exchanges that the requests here allow."""
        return CLAIM_INTERVAL if self._queues.only_lines else inf

    def claim_after(self) -> float:
        """Return the seconds from the start of the iteration in flight after which another exchange brings what has
        come meanwhile in time for the next iteration; infinite if this one is too short, or if no tenant waits for
        the iterations of another one: it costs processor time."""
        if len(self._in_flight) != 1 or self._now() > self._mixed_at + MIXED:
            return inf
        batch = self._in_flight[0]
        seconds = self._cost.seconds(batch.num_tokens, batch.num_pairs)
        return inf if seconds < LONG else (1 - MARGIN) * seconds - AHEAD

    def wait_time(self) -> float:
        """Return the seconds until lines of batches may run, if nothing else is here; infinite otherwise."""
        return self._queues.seconds_to_lines(self._now())

    def held(self) -> list[str]:
        """Return the ids of all requests here, including those that have ended but may have to be committed again."""
        return list(dict.fromkeys([*self._entries, *self._outbox.ids()]))

    def find(self, id: str) -> RequestEntry | None:
        """Return a request that has not ended; None if it is not here."""
        return self._entries.get(id)

    def room(self) -> Room:
        """Return what can be claimed now: what is free, plus what requests will free whose last token is in flight,
        minus what the waiting requests will take.
        """
        finishing = [entry for batch in self._in_flight for entry in batch.finishing if not entry.removed]
        room = self._queues.room(finishing)
        wanted = [self._kv.num_blocks(entry) for entry in self._reading]
        if not wanted:
            return room
        return replace(room, requests=max(0, room.requests - len(wanted)), blocks=max(0, room.blocks - sum(wanted)))

    def gauges(self) -> dict[str, float]:
        """Return gauges for the metrics: `kv_usage`, the share of KV blocks that are held, 0 to 1; `paused`, the number
        of waiting requests that hold blocks; and `token_budget`, the most tokens of an iteration, if it is limited.
        """
        most = self._budget.max_tokens
        paused = sum(entry.capacity > 0 for entry in self._queues.waiting)
        limited = {"token_budget": float(most)} if most < inf else {}
        return {"kv_usage": self.blocks.held / self.blocks.num_blocks, "paused": float(paused)} | limited

    def take_counters(self) -> dict[str, float]:
        """Return the increments of counters since the last call."""
        return self._queues.take_counters()


class RequestLevelScheduler(Scheduler):
    """Request-level scheduling as in Triton with FasterTransformer (paper, section 2): our baseline. A batch is fixed
    until its last request ends; only then is the next one claimed and started.

    It is kinder than FasterTransformer in two points: requests that have ended are not computed any more, and prompts
    are not padded to the longest one of the batch. What remains is the cost of the fixed batch.
    """

    def _closed(self) -> bool:
        return bool(self._queues.running)

    def room(self) -> Room:
        """Return room for a whole batch if none runs, or if the last token of each of its requests is in flight."""
        if all(entry.finishing for entry in self._queues.running):
            return super().room()
        return Room(0, 0, self.blocks.block_size)


class Outbox:
    """The requests with new tokens or an end, in the order in which these came; and the requests of the last commits,
    because a pool that lost them asks for them again.
    """

    def __init__(self) -> None:
        self._uncommitted: dict[str, RequestEntry] = {}
        self._sent: dict[str, RequestEntry] = {}

    def __bool__(self) -> bool:
        return bool(self._uncommitted)

    def put(self, entry: RequestEntry) -> None:
        self._uncommitted[entry.id] = entry

    def take(self) -> list[Commit]:
        """Return one commit for each request with something new."""
        commits = [entry.take_commit() for entry in self._uncommitted.values()]
        self._sent, self._uncommitted = self._uncommitted, {}
        return commits

    def find(self, id: str) -> RequestEntry | None:
        return self._uncommitted.get(id) or self._sent.get(id)

    def drop(self, id: str) -> None:
        self._uncommitted.pop(id, None)
        self._sent.pop(id, None)

    def ids(self) -> list[str]:
        return list(self._sent | self._uncommitted)
