"""The latency of a request as its client sees it: time to first token and between tokens, in histograms."""

from __future__ import annotations

from dataclasses import dataclass

from services.messages import Submission, TokenEvent
from services.metrics import Counters
from services.requests import class_label


@dataclass(slots=True)
class _Times:
    prompt_tokens: int
    max_tokens: int
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0


class RequestLatency:
    """Observes the sequences of a request; all times in seconds of one clock."""

    def __init__(self, counters: Counters, received: float, submission: Submission) -> None:
        self._counters = counters
        self._received = received
        self._tenant, self._priority = submission.tenant, class_label(submission.priority)
        self._times = {s.id: _Times(len(s.prompt), s.sampling.max_new_tokens) for s in submission.sequences}
        self._open = len(self._times)  # sequences that have not ended

    def observe(self, events: list[TokenEvent], now: float) -> None:
        """Events that arrived at `now`. Tokens that arrived together share the time since the token before them."""
        fresh: dict[str, int] = {}
        ended: list[str] = []
        for event in events:
            if event.token is not None:
                fresh[event.id] = fresh.get(event.id, 0) + 1
            else:
                ended.append(event.id)
        for id, tokens in fresh.items():
            self._tokens(self._times[id], tokens, now)
        for id in ended:
            self._ended(self._times[id], now)
        self._open -= len(ended)
        if ended and not self._open:
            longest = max(times.tokens for times in self._times.values())
            self._counters.observe("vllm:request_max_num_generation_tokens", longest)

    def _tokens(self, times: _Times, tokens: int, now: float) -> None:
        if times.tokens == 0:
            times.first = times.last = now
            ttft, tenant, priority = now - self._received, self._tenant, self._priority
            self._counters.observe("vllm:time_to_first_token_seconds", ttft, tenant=tenant, priority=priority)
            times.tokens, tokens = 1, tokens - 1
        if tokens:
            self._counters.observe("vllm:inter_token_latency_seconds", (now - times.last) / tokens, tokens)
            times.tokens += tokens
            times.last = now

    def _ended(self, times: _Times, now: float) -> None:
        observe = self._counters.observe
        observe("vllm:e2e_request_latency_seconds", now - self._received)
        observe("vllm:request_prompt_tokens", times.prompt_tokens)
        observe("vllm:request_generation_tokens", times.tokens)
        observe("vllm:request_params_max_tokens", times.max_tokens)
        if times.tokens > 1:
            mean = (times.last - times.first) / (times.tokens - 1)
            observe("vllm:request_time_per_output_token_seconds", mean)
