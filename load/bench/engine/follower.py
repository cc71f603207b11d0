"""Follower: an engine with a record of the spans and the seconds of each iteration."""

from __future__ import annotations

from dataclasses import dataclass

from load.bench.engine.operations import Span
from load.in_process import Engine
from services.messages import EngineFigures, Iteration, IterationResult


@dataclass(frozen=True, slots=True)
class Ran:
    """An iteration that the engine ran; `seconds` inside the engine."""

    spans: tuple[Span, ...]
    seconds: float

    @property
    def is_increment(self) -> bool:
        """Whether each of its requests computed one token behind others."""
        return all(span.tokens == 1 and span.context for span in self.spans)


@dataclass(slots=True)
class _Request:
    computed: int
    length: int


class Follower:
    """Passes iterations on to `engine` and notes them in `ran`."""

    def __init__(self, engine: Engine) -> None:
        self.ran: list[Ran] = []
        self._engine = engine
        self._requests: dict[str, _Request] = {}

    @property
    def figures(self) -> EngineFigures:
        return self._engine.figures

    def reset(self, epoch: str) -> None:
        self._requests.clear()
        self._engine.reset(epoch)

    def run(self, iteration: Iteration) -> IterationResult:
        result = self._engine.run(iteration)
        assert not result.failed, f"{result.failed}"
        spans = self._spans(iteration)
        for id in result.tokens:
            self._requests[id].length += 1
        if spans:
            self.ran.append(Ran(spans, result.elapsed))
        return result

    def _spans(self, iteration: Iteration) -> tuple[Span, ...]:
        for id in iteration.released:
            self._requests.pop(id, None)
        for new in iteration.new:
            self._requests[new.id] = _Request(new.num_computed_tokens, len(new.token_ids))
        spans = []
        for id, tokens in iteration.scheduled.items():
            request = self._requests[id]
            spans.append(Span(request.computed, tokens, request.computed + tokens == request.length))
            request.computed += tokens
        return tuple(spans)
