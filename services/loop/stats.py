"""The metrics of a scheduler: its iterations, and the requests that end at it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from services.messages import Claim, Commit, Iteration, IterationResult
from services.metrics import Counters
from services.requests import class_label


class IterationStats:
    """Counts iterations, tokens and requests in `counters`; keeps gauges and a one-line summary of the last iteration.
    `engine` is the number of the engine. All times are in seconds of one clock.
    """

    def __init__(self, counters: Counters, engine: str) -> None:
        self.summary = ""
        self._counters = counters
        self._engine = engine
        self._requests = RequestStats(counters, engine)
        self._batch_size = self._peak = 0

    def claimed(self, claims: list[Claim], foreign: list[str], now: float) -> None:
        """Requests came to this scheduler; those of the ids `foreign` belong to another one."""
        self._requests.dropped(foreign)
        self._requests.claimed(claims, now)

    def started(self, iteration: Iteration, now: float) -> None:
        if iteration.new:
            self._requests.started(iteration, now)
        self._batch_size = len(iteration.scheduled)
        self._peak = max(self._peak, self._batch_size)

    def finished(self, iteration: Iteration, result: IterationResult, seconds: float) -> None:
        """Count an iteration. `seconds`: from its start to its result, measured by the scheduler."""
        counters, engine = self._counters, self._engine
        batch, tokens = len(iteration.scheduled), sum(iteration.scheduled.values())
        prompts: list[int] = []
        if iteration.new or tokens > batch:
            new = {request.id for request in iteration.new}
            prompts = [count for id, count in iteration.scheduled.items() if count > 1 or id in new]
        initiations = len(prompts)
        counters.inc("orca:iterations", engine=engine)
        if 0 < initiations < batch:
            counters.inc("orca:mixed_iterations", engine=engine)
        if initiations:
            counters.inc("vllm:prompt_tokens", sum(prompts), engine=engine)
        sampled = result.num_tokens
        counters.inc("vllm:generation_tokens", sampled, engine=engine)
        counters.observe("vllm:iteration_tokens_total", sum(prompts) + sampled, engine=engine)
        counters.observe("orca:iteration_requests", batch, engine=engine)
        counters.observe("orca:iteration_seconds", seconds, engine=engine)
        for id, draft in iteration.drafts.items():
            right = len(result.more.get(id, ()))
            counters.inc("vllm:spec_decode_num_drafts", engine=engine)
            counters.inc("vllm:spec_decode_num_draft_tokens", len(draft), engine=engine)
            counters.inc("vllm:spec_decode_num_accepted_tokens", right, engine=engine)
            for position in range(right):
                counters.inc("vllm:spec_decode_num_accepted_tokens_per_pos", engine=engine, position=str(position))
        drafted = iteration.num_tokens - tokens
        self.summary = (
            f"iteration {iteration.step}: {batch} requests ({initiations} initiation, "
            f"{batch - initiations} increment), {tokens} tokens, "
            + (f"{sampled - len(result.tokens)} of {drafted} drafted ones right, " if drafted else "")
            + f"{seconds * 1e3:.1f} ms"
        )

    def committed(self, commits: list[Commit], now: float) -> None:
        self._requests.committed(commits, now)

    def exchanged(self, seconds: float) -> None:
        self._counters.observe("orca:exchange_seconds", seconds, engine=self._engine)

    def resent(self, tokens: int) -> None:
        if tokens:
            self._counters.inc("orca:resent_tokens", tokens, engine=self._engine)

    def stuck(self) -> None:
        self._counters.inc("orca:engine_stuck", engine=self._engine)

    def take_counters(self, scheduler: dict[str, float]) -> dict[str, float]:
        """Return what the loop and its scheduler have counted since the last call."""
        for name, by in scheduler.items():
            self._counters.inc(name, by, engine=self._engine)
        return self._counters.take()

    def gauges(self, ready: bool) -> dict[str, float]:
        return {
            "ready": float(ready),
            "batch_size": self._batch_size,
            "peak_batch_size": self._peak,
        }


@dataclass(slots=True)
class _Times:
    """Seconds of the loop's clock; 0.0 for what has not happened here."""

    tenant: str
    priority: str
    prompt_tokens: int
    arrived: float
    scheduled: float = 0.0
    first_token: float = 0.0


class RequestStats:
    """Counts each request once, in the exchange that commits its end.

    The times of a request are observed only if its first token was sampled here. Of a request that came with tokens of
    an earlier owner, this process has not seen the beginning.
    """

    def __init__(self, counters: Counters, engine: str) -> None:
        self._counters = counters
        self._engine = engine
        self._times: dict[str, _Times] = {}

    def claimed(self, claims: Iterable[Claim], now: float) -> None:
        for claim in claims:
            priority = class_label(claim.priority)
            self._times[claim.id] = _Times(claim.tenant, priority, len(claim.prompt), now - claim.waited)

    def dropped(self, ids: Iterable[str]) -> None:
        """Forget requests that belong to another scheduler, which counts them."""
        for id in ids:
            self._times.pop(id, None)

    def started(self, iteration: Iteration, now: float) -> None:
        for request in iteration.new:
            times = self._times.get(request.id)
            if times and not times.scheduled:  # a request that was preempted is new to the engine once more
                times.scheduled = now

    def committed(self, commits: Iterable[Commit], now: float) -> None:
        for commit in commits:
            if commit.index and not commit.end:  # most commits
                continue
            times = self._times.get(commit.id)
            if times is None:
                continue
            if commit.index == 0 and commit.tokens and not times.first_token:
                times.first_token = now
            if commit.end:
                del self._times[commit.id]
                self._ended(times, commit, now)

    def _ended(self, times: _Times, commit: Commit, now: float) -> None:
        assert commit.end is not None
        inc, observe, engine = self._counters.inc, self._counters.observe, self._engine
        reason, tenant, priority = commit.end.reason.value, times.tenant, times.priority
        inc("vllm:request_success", engine=engine, finished_reason=reason)
        inc("orca:tenant_requests", tenant=tenant, priority=priority, finished_reason=reason)
        inc("orca:tenant_prompt_tokens", times.prompt_tokens, tenant=tenant, priority=priority)
        inc("orca:tenant_generation_tokens", commit.index + len(commit.tokens), tenant=tenant, priority=priority)
        if times.scheduled and times.first_token:
            waited = times.scheduled - times.arrived
            observe("vllm:request_queue_time_seconds", waited, tenant=tenant, priority=priority)
            observe("vllm:request_prefill_time_seconds", times.first_token - times.scheduled, engine=engine)
            observe("vllm:request_decode_time_seconds", now - times.first_token, engine=engine)
            observe("vllm:request_inference_time_seconds", now - times.scheduled, engine=engine)
