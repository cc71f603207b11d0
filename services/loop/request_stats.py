"""RequestStats: the metrics of the requests that end at a scheduler: how long they waited and ran, and their tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from services.messages import Claim, Commit, Iteration
from services.metrics import Counters
from services.requests import class_label


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
