"""Iterations put together by hand, without a scheduler, and a record of the iterations that an engine ran."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

import torch

from load.bench.floor import Span
from load.bench.timing import Mark, hold_up
from load.in_process import Engine as AnyEngine
from services.engine.engine import Engine
from services.messages import EngineFigures, Iteration, IterationResult, NewRequest
from services.requests import SamplingParams
from services.started import Started

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class TimedIteration:
    """An iteration that the engine ran, with the seconds inside the engine. Its device began it, or was waiting for it,
    at `began`."""

    spans: tuple[Span, ...]
    seconds: float
    began: Mark
    ended: Mark

    @property
    def is_increment(self) -> bool:
        """Whether each of its requests computed one token after others."""
        return all(span.tokens == 1 and span.context for span in self.spans)


@dataclass(slots=True)
class _Request:
    computed: int
    length: int


class RecordingEngine:
    """Passes iterations on to `engine` and records them in `ran`."""

    def __init__(self, engine: AnyEngine, device: torch.device = CPU, held_up: bool = False) -> None:
        """`held_up`: the device begins an iteration after all of it is launched, and so waits for nothing within it."""
        self.ran: list[TimedIteration] = []
        self._engine = engine
        self._device = device
        self._held_up = held_up
        self._requests: dict[str, _Request] = {}

    @property
    def figures(self) -> EngineFigures:
        return self._engine.figures

    def reset(self, epoch: str) -> None:
        self._requests.clear()
        self._engine.reset(epoch)

    def run(self, iteration: Iteration) -> IterationResult:
        return self.start(iteration).result()

    def start(self, iteration: Iteration) -> Started[IterationResult]:
        spans = self._spans(iteration)
        if self._held_up:
            hold_up(self._device)
        began = Mark(self._device)
        started = self._engine.start(iteration)
        ended = Mark(self._device)

        def record(result: IterationResult) -> IterationResult:
            assert not result.failed, f"{result.failed}"
            if spans:
                self.ran.append(TimedIteration(spans, result.elapsed, began, ended))
            return result

        return started.then(record)

    def _spans(self, iteration: Iteration) -> tuple[Span, ...]:
        for id in iteration.released:
            self._requests.pop(id, None)
        for new in iteration.new:
            self._requests[new.id] = _Request(new.num_computed_tokens, len(new.token_ids))
        spans = []
        for id, tokens in iteration.scheduled.items():
            request = self._requests[id]
            sampled = request.computed + tokens == request.length
            spans.append(Span(request.computed, tokens, sampled))
            request.computed += tokens
            request.length += sampled
        return tuple(spans)


EPOCH = "batches"


class Batches:
    """Runs batches of requests that share no prefix. Each call starts with an engine that has no request."""

    def __init__(self, engine: Engine, ahead: int = 0) -> None:
        """`ahead`: how many iterations are started before the result of one is read."""
        self._engine = engine
        self._ahead = ahead
        self._figures: EngineFigures = engine.figures
        self._draw = random.Random(0).randrange

    def fits(self, batch: int, tokens: int) -> bool:
        """Whether the engine can hold `batch` requests of `tokens` tokens each."""
        return self._known(tokens) and batch * self._blocks(tokens) <= self._figures.num_blocks

    def fits_mixed(self, batch: int, tokens: int, prompts: int, length: int) -> bool:
        """Whether it can hold `prompts` prompts of `length` tokens beside `batch` requests of `tokens` tokens."""
        blocks = batch * self._blocks(tokens) + prompts * self._blocks(length)
        return self._known(max(tokens, length)) and blocks <= self._figures.num_blocks

    def mixed(self, batch: int, context: int, prompts: int, length: int, iterations: int) -> list[TimedIteration]:
        """In each iteration `batch` requests compute a token each, the first one after `context` tokens, whose keys and
        values are random numbers, and `prompts` new prompts of `length` tokens are computed. `context` is a multiple of
        the block size."""
        assert context % self._figures.block_size == 0, f"{context = } {self._figures.block_size = }"
        blocks = self._blocks(context + iterations)
        self._fill(batch * blocks)
        recording = self._follower()
        running = [str(i) for i in range(batch)]
        released: list[str] = []
        reading = deque[Started[IterationResult]]()
        for step in range(iterations):
            started = [f"{step}/{i}" for i in range(prompts)]
            new = [self._new(id, length, 0) for id in started]
            place = self._place(started, self._blocks(length), batch * blocks)
            if step == 0:
                new += [self._new(id, context + 1, context) for id in running]
                place |= self._place(running, blocks)
            scheduled = dict.fromkeys(running, 1) | dict.fromkeys(started, length)
            reading.append(recording.start(Iteration(EPOCH, step, scheduled, new, place, released)))
            released = started
            if len(reading) > self._ahead:
                reading.popleft().result()
        for one in reading:
            one.result()
        return recording.ran

    def _follower(self) -> RecordingEngine:
        recording = RecordingEngine(self._engine)
        recording.reset(EPOCH)
        return recording

    def _new(self, id: str, length: int, computed: int) -> NewRequest:
        tokens = [self._draw(self._figures.vocab_size) for _ in range(length)]
        sampling = SamplingParams(self._figures.max_model_len, temperature=0.0, ignore_eos=True)
        return NewRequest(id, tokens, length, sampling, computed)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._figures.block_size)

    def _place(self, ids: list[str], blocks: int, first: int = 0) -> dict[str, list[int]]:
        return {id: list(range(first + i * blocks, first + (i + 1) * blocks)) for i, id in enumerate(ids)}

    def _known(self, tokens: int) -> bool:
        return tokens <= self._figures.max_model_len

    def _fill(self, blocks: int) -> None:
        """Write to the first blocks: pages that were never written to are all one page, which is read from cache."""
        cache = self._engine._cache
        for store in (*cache.keys, *cache.values):
            if store.dtype == torch.int8:
                store[:blocks].random_(0x3A, 0x3D)  # four of them as a scale are 0.0007 to 0.012
            else:
                store[:blocks].uniform_(-1.0, 1.0)
