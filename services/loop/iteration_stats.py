"""IterationStats: the metrics of a scheduler's iterations, which are sent with each exchange."""

from __future__ import annotations

from services.messages import Commit, Iteration, IterationResult
from services.metrics import Counters


class IterationStats:
    """Counts iterations, tokens and ends in `counters`; keeps gauges and a one-line summary of the last iteration."""

    def __init__(self, counters: Counters) -> None:
        self.summary = ""
        self._counters = counters
        self._batch_size = self._peak = 0

    def started(self, iteration: Iteration) -> None:
        self._batch_size = len(iteration.scheduled)
        self._peak = max(self._peak, self._batch_size)

    def finished(self, iteration: Iteration, result: IterationResult, seconds: float) -> None:
        """Count an iteration. `seconds`: from its start to its result, measured by the scheduler."""
        counters = self._counters
        batch, tokens = len(iteration.scheduled), sum(iteration.scheduled.values())
        prompts: list[int] = []
        if iteration.new or tokens > batch:
            new = {request.id for request in iteration.new}
            prompts = [count for id, count in iteration.scheduled.items() if count > 1 or id in new]
        initiations = len(prompts)
        counters.inc("orca:iterations")
        if 0 < initiations < batch:
            counters.inc("orca:mixed_iterations")
        if initiations:
            counters.inc("vllm:prompt_tokens", sum(prompts))
        counters.inc("vllm:generation_tokens", len(result.tokens))
        counters.observe("vllm:iteration_tokens_total", tokens)
        counters.observe("orca:iteration_requests", batch)
        counters.observe("orca:iteration_seconds", seconds)
        self.summary = (
            f"iteration {iteration.step}: {batch} requests ({initiations} initiation, "
            f"{batch - initiations} increment), {tokens} tokens, {seconds * 1e3:.1f} ms"
        )

    def committed(self, commits: list[Commit]) -> None:
        for commit in commits:
            if commit.end:
                self._counters.inc("vllm:request_success", finished_reason=commit.end.reason.value)

    def exchanged(self, seconds: float) -> None:
        self._counters.observe("orca:exchange_seconds", seconds)

    def resent(self, tokens: int) -> None:
        if tokens:
            self._counters.inc("orca:resent_tokens", tokens)

    def stuck(self) -> None:
        self._counters.inc("orca:engine_stuck")

    def take_counters(self, scheduler: dict[str, float]) -> dict[str, float]:
        """Return what the loop and its scheduler have counted since the last call."""
        for name, by in scheduler.items():
            self._counters.inc(name, by)
        return self._counters.take()

    def gauges(self, ready: bool) -> dict[str, float]:
        return {
            "ready": float(ready),
            "batch_size": self._batch_size,
            "peak_batch_size": self._peak,
        }
