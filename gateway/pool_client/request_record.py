"""What a gateway notes of a request: `RequestRecord` for its trace and the line in the log at its end, `RequestLatency`
for the histograms of its time to first token and between tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.answer.plan import Plan
from gateway.pool_client.event_reader import EventBuffer
from services.logs import REQUEST, about
from services.messages import Group, Submission, TokenEvent
from services.metrics import Counters
from services.requests import FinishReason, class_label
from services.tracing import names
from services.tracing.tracer import Attributes, Event, OpenSpan, Tracer, is_traceparent, trace_id_of, unix_offset

ABANDONED = "abandoned"  # the client went away, or this gateway stopped

log = logging.getLogger(__name__)


class RequestRecords:
    """Makes a record of each request; none if it is neither traced nor logged."""

    def __init__(self, tracer: Tracer | None, log_requests: bool, model: str, gateway: str) -> None:
        self._tracer = tracer
        self._log_requests = log_requests
        self._model = model
        self._gateway = gateway

    def submitted(self, submission: Submission, plan: Plan, arrived_at: float | None) -> RequestRecord | None:
        """The record of a request that is about to be submitted, and that arrived at the loop's time `arrived_at`."""
        now = asyncio.get_running_loop().time()
        record = self._record(names.REQUEST, submission.request, submission.tenant, plan, arrived_at or now)
        if record and record.trace and self._tracer:
            offset = unix_offset(now)
            self._tracer.write(names.VALIDATE, record.trace, (arrived_at or now) + offset, now + offset)
        return record

    def resumed(self, group: Group, plan: Plan) -> RequestRecord | None:
        """The record of a client that follows an earlier request."""
        now = asyncio.get_running_loop().time()
        record = self._record(names.RESUMED, group.request, group.tenant, plan, now)
        if record:
            record.continues(group.trace)
        return record

    def _record(self, name: str, request: str, tenant: str, plan: Plan, began: float) -> RequestRecord | None:
        context, span = REQUEST.get(), None
        if context:
            context.request_id = request
        if self._tracer:
            attributes: Attributes = {
                names.REQUEST_ID: request,
                names.MODEL: self._model,
                names.TENANT: tenant,
                names.GATEWAY: self._gateway,
                names.MAX_TOKENS: plan.max_new_tokens,
                names.REQUEST_N: plan.n,
                names.NUM_SEQUENCES: plan.choices,
                names.PROMPT_TOKENS: plan.prompt_tokens,
            }
            parent, at = context.traceparent if context else "", began + unix_offset(asyncio.get_running_loop().time())
            span = self._tracer.start(name, parent, at, attributes, server=True)
        if context and span:
            context.trace_id = trace_id_of(span.context)
        if not (span or self._log_requests):
            return None
        return RequestRecord(request, plan, began, span, self._log_requests, self._tracer)


class RequestRecord:
    """Times are those of the loop's clock. `trace`: the context of the request's span; empty: it is not traced."""

    def __init__(
        self, request: str, plan: Plan, began: float, span: OpenSpan | None, logged: bool, tracer: Tracer | None
    ) -> None:
        self.trace = span.context if span else ""
        self._request, self._plan, self._began = request, plan, began
        self._span, self._logged, self._tracer = span, logged, tracer
        self._first: float | None = None
        self._reasons: list[str] = []
        self._closed = False

    def traced(self, submission: Submission) -> Submission:
        """The submission with the trace context for schedulers."""
        return replace(submission, trace=self.trace) if self.trace else submission

    def continues(self, trace: str) -> None:
        """The request was submitted earlier; `trace` is its context, if it has one."""
        if self._span and is_traceparent(trace):
            self._span.link(trace)

    def in_pool(self, began: float) -> None:
        """The call of the pool that began at `began` has returned."""
        if self._span and self._tracer:
            now = asyncio.get_running_loop().time()
            offset = unix_offset(now)
            self._tracer.write(names.SUBMIT, self.trace, began + offset, now + offset)

    def observe(self, events: Sequence[TokenEvent], now: float) -> None:
        """Events that arrived at `now`."""
        if self._first is None and any(event.token is not None for event in events):
            self._first = now
        self._reasons += [event.end.reason.value for event in events if event.end is not None]

    def failed(self, error: BaseException) -> None:
        """The request was not accepted, or cannot be followed."""
        self._close([], 0, f"{type(error).__name__}: {error}")

    def close(self, buffer: EventBuffer) -> None:
        """No more events are taken."""
        reasons = self._reasons + [ABANDONED] * (self._plan.choices - len(self._reasons))
        error = FinishReason.ERROR.value if FinishReason.ERROR in reasons else None
        self._close(reasons, sum(map(len, buffer.tokens.values())), error)

    def _close(self, reasons: list[str], tokens: int, error: str | None) -> None:
        if self._closed:
            return
        self._closed, now = True, asyncio.get_running_loop().time()
        seconds, first = now - self._began, None if self._first is None else self._first - self._began
        if self._span:
            offset = unix_offset(now)
            attributes: dict[str, str | int | float | list[str]] = {
                names.COMPLETION_TOKENS: tokens,
                names.E2E: seconds,
                names.FINISH_REASONS: reasons,
            }
            events = []
            if self._first is not None and first is not None:
                attributes[names.TIME_TO_FIRST_TOKEN] = first
                events = [Event(names.FIRST_TOKEN, self._first + offset)]
            self._span.end(now + offset, attributes, events, error)
        if self._logged:
            self._log(reasons, tokens, seconds, first, error)

    def _log(self, reasons: list[str], tokens: int, seconds: float, first: float | None, error: str | None) -> None:
        fields = {
            "api": self._plan.kind.value,
            "prompt_tokens": self._plan.prompt_tokens,
            "completion_tokens": tokens,
            "choices": self._plan.choices,
            "finish_reasons": reasons,
            "seconds": round(seconds, 4),
            "ttft_seconds": None if first is None else round(first, 4),
            "error": error,
        }
        if self.trace:
            fields["trace_id"] = trace_id_of(self.trace)
        text = "%s: %d prompt tokens, %d output tokens, %s after %.2f s"
        ended = error or ", ".join(dict.fromkeys(reasons))
        extra = about(self._request, **fields)
        log.info(text, self._request, self._plan.prompt_tokens, tokens, ended, seconds, extra=extra)


class RequestLatency:
    """The latency of a request as its client sees it; all times in seconds of one clock."""

    def __init__(self, counters: Counters, arrived_at: float, submission: Submission) -> None:
        self._counters = counters
        self._arrived_at = arrived_at
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
            ttft, tenant, priority = now - self._arrived_at, self._tenant, self._priority
            self._counters.observe("vllm:time_to_first_token_seconds", ttft, tenant=tenant, priority=priority)
            times.tokens, tokens = 1, tokens - 1
        if tokens:
            self._counters.observe("vllm:inter_token_latency_seconds", (now - times.last) / tokens, tokens)
            times.tokens += tokens
            times.last = now

    def _ended(self, times: _Times, now: float) -> None:
        observe = self._counters.observe
        observe("vllm:e2e_request_latency_seconds", now - self._arrived_at)
        observe("vllm:request_prompt_tokens", times.prompt_tokens)
        observe("vllm:request_generation_tokens", times.tokens)
        observe("vllm:request_params_max_tokens", times.max_tokens)
        if times.tokens > 1:
            mean = (times.last - times.first) / (times.tokens - 1)
            observe("vllm:request_time_per_output_token_seconds", mean)


@dataclass(slots=True)
class _Times:
    prompt_tokens: int
    max_tokens: int
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
