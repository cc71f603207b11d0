"""TenureTraces: the spans of a scheduler's requests, from their claim until they end or leave the seat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.loop.observers import Leaving, Observer
from services.messages import Claim, Commit, End, Iteration, IterationResult
from services.requests import FinishReason
from services.tracing import names
from services.tracing.tracer import Attributes, Event, Tracer, is_traceparent, unix_offset

# why a tenure ended, besides `Leaving`
FINISHED = "finished"  # the request ended
TAKEN = "taken"  # the owner was dead or silent; the next one writes this span


@dataclass(slots=True)
class _Tenure:
    """A traced request, while this scheduler has it. Times are readings of the event loop's clock, in seconds."""

    claim: Claim
    claimed: float
    first: float = 0.0  # when its first iteration began
    first_token: float = 0.0  # when its first new token was known; 0: there is none
    last: float = 0.0  # when its last iteration ended
    iterations: int = 0
    chunks: int = 0
    tokens: int = 0
    cached: int = 0
    seconds: float = 0.0
    engine_seconds: float = 0.0
    events: list[Event] = field(default_factory=list)
    ended: float = 0.0
    ended_by: str = ""
    end: End | None = None


class TenureTraces(Observer):
    """Notes what happens to traced requests, and writes their spans while the engine computes.

    A scheduler that is killed writes nothing about its requests. The pool tells the next owner when the tenure began
    and ended, and the next owner writes its span.
    """

    def __init__(self, tracer: Tracer, seat: str, epoch: str, now: Callable[[], float]) -> None:
        """`now` is the loop's clock, in seconds."""
        self._tracer = tracer
        self._seat, self._epoch = seat, epoch
        self._now = now
        self._tenures: dict[str, _Tenure] = {}
        self._claimed: list[_Tenure] = []  # whose wait is not written yet
        self._ended: list[_Tenure] = []  # that are not written yet

    def claimed(self, claims: Sequence[Claim], foreign: Sequence[str]) -> None:
        for id in foreign:  # their new owner writes their spans
            self._tenures.pop(id, None)
        for claim in claims:
            if is_traceparent(claim.trace):  # another build may have another format
                self._tenures[claim.id] = tenure = _Tenure(claim, self._now())
                self._claimed.append(tenure)

    def finished(self, iteration: Iteration, result: IterationResult, seconds: float) -> None:
        """Note an iteration that has just ended, and that took `seconds`."""
        if not self._tenures:
            return
        now, new = self._now(), {request.id: request.num_computed_tokens for request in iteration.new}
        for id, tenure in self._tenures.items():
            if id not in iteration.scheduled:
                continue
            if tenure.iterations == 0:
                tenure.first, tenure.cached = now - seconds, new.get(id, 0)
            elif id in new:
                tenure.events += Event(names.PREEMPTED, tenure.last), Event(names.RECOMPUTED, now - seconds)
            tenure.iterations += 1
            tenure.chunks += not tenure.first_token
            tenure.seconds += seconds
            tenure.engine_seconds += result.elapsed
            tenure.last = now
            if id in result.tokens:
                tenure.tokens += len(result.tokens_of(id))
                tenure.first_token = tenure.first_token or now

    def committed(self, commits: Sequence[Commit]) -> None:
        """Note the requests that end with `commits`."""
        if self._tenures:
            for commit in commits:
                if commit.end is not None:
                    self._end(commit.id, FINISHED, commit.end)

    def rest(self) -> None:
        """Write the spans of what was claimed and what has ended since the last call."""
        if not self._claimed and not self._ended:
            return
        offset = unix_offset(self._now())
        for tenure in self._claimed:
            self._write_wait(tenure.claim, tenure.claimed + offset)
        for tenure in self._ended:
            self._write_tenure(tenure, offset)
        self._claimed, self._ended = [], []

    def close(self, leaving: Leaving | None) -> None:
        """Write the spans of the requests that this scheduler still has. Another owner writes the spans of its
        requests."""
        for id in list(self._tenures) if leaving else ():
            self._end(id, str(leaving))
        self.rest()

    def _end(self, id: str, ended_by: str, end: End | None = None) -> None:
        if tenure := self._tenures.pop(id, None):
            tenure.ended, tenure.ended_by, tenure.end = self._now(), ended_by, end
            self._ended.append(tenure)

    def _write_wait(self, claim: Claim, at: float) -> None:
        """Write the span of the previous owner's tenure, if that owner could not, and the span of the wait until the
        claim at the Unix time `at`."""
        before, waited = claim.before, claim.waited
        if before is not None:
            waited = before.left
            if before.taken:
                attributes = {names.SEAT: before.seat, names.EPOCH: before.epoch, names.ENDED_BY: TAKEN}
                attributes[names.SEQUENCE] = claim.id
                self._tracer.write(names.TENURE, claim.trace, at - before.claimed, at - before.left, attributes)
        queued: Attributes = {names.SEQUENCE: claim.id, names.CLASS: claim.priority, names.TIME_IN_QUEUE: waited}
        self._tracer.write(names.QUEUE, claim.trace, at - waited, at, queued)

    def _write_tenure(self, tenure: _Tenure, offset: float) -> None:
        claim, end, write = tenure.claim, tenure.end, self._tracer.write
        attributes: dict[str, str | int | float | list[str]] = {
            names.SEQUENCE: claim.id,
            names.SEAT: self._seat,
            names.EPOCH: self._epoch,
            names.ENDED_BY: tenure.ended_by,
            names.PROMPT_TOKENS: len(claim.prompt),
            names.COMPLETION_TOKENS: tenure.tokens,
            names.RESUMED_TOKENS: len(claim.output),
        }
        if end is not None:
            attributes[names.FINISH_REASONS] = [end.reason.value]
        error = (end.error or "error") if end is not None and end.reason is FinishReason.ERROR else None
        events = [Event(event.name, event.at + offset) for event in tenure.events]
        claimed, ended = tenure.claimed + offset, tenure.ended + offset
        context = write(names.TENURE, claim.trace, claimed, ended, attributes, events, error)
        if not tenure.iterations:
            return
        first, last = tenure.first + offset, tenure.last + offset
        measured: Attributes = {
            names.ITERATIONS: tenure.iterations,
            names.ITERATION_SECONDS: tenure.seconds,
            names.ENGINE_SECONDS: tenure.engine_seconds,
            names.TIME_IN_MODEL_INFERENCE: last - first,
        }
        engine = write(names.ENGINE, context, first, last, measured)
        filled = tenure.first_token + offset if tenure.first_token else last
        prompt: Attributes = {
            names.CHUNKS: tenure.chunks,
            names.CACHED_TOKENS: tenure.cached,
            names.TIME_IN_MODEL_PREFILL: filled - first,
        }
        write(names.PREFILL, engine, first, filled, prompt)
        if tenure.tokens > 1:
            decoded: Attributes = {
                names.COMPLETION_TOKENS: tenure.tokens - 1,
                names.TIME_IN_MODEL_DECODE: last - filled,
            }
            write(names.DECODE, engine, filled, last, decoded)
