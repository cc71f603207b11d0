"""IterationStats: the metrics of a scheduler's iterations, which are sent with each exchange."""

from __future__ import annotations

from services.loop.request_stats import RequestStats
from services.messages import Claim, Commit, Iteration, IterationResult
from services.metrics import Counters


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
        counters.inc("vllm:generation_tokens", len(result.tokens), engine=engine)
        counters.observe("vllm:iteration_tokens_total", sum(prompts) + len(result.tokens), engine=engine)
        counters.observe("orca:iteration_requests", batch, engine=engine)
        counters.observe("orca:iteration_seconds", seconds, engine=engine)
        self.summary = (
            f"iteration {iteration.step}: {batch} requests ({initiations} initiation, "
            f"{batch - initiations} increment), {tokens} tokens, {seconds * 1e3:.1f} ms"
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
