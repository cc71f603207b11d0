"""Batches: iterations of one kind, put together by hand, with no scheduler."""

from __future__ import annotations

import random

from load.engine_floor.follower import Follower, Ran
from services.engine.engine import Engine
from services.messages import EngineFigures, Iteration, NewRequest
from services.requests import SamplingParams

EPOCH = "batches"


class Batches:
    """Runs batches of requests that have nothing in common. Each call begins with an engine that knows no request."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._figures: EngineFigures = engine.figures
        self._draw = random.Random(0).randrange

    def fits(self, batch: int, tokens: int) -> bool:
        """Whether so many requests of so many tokens each can be held at once."""
        return tokens <= self._figures.max_model_len and batch * self._blocks(tokens) <= self._figures.num_blocks

    def increments(self, batch: int, context: int, iterations: int) -> list[Ran]:
        """`batch` requests go on by a token each from `context` tokens, whole blocks, whose keys and values are
        random numbers."""
        assert context % self._figures.block_size == 0, f"{context = } {self._figures.block_size = }"
        blocks = self._blocks(context + iterations)
        self._fill(batch * blocks)
        follower = self._follower()
        ids = [str(i) for i in range(batch)]
        for step in range(iterations):
            follower.run(
                Iteration(
                    EPOCH,
                    step,
                    dict.fromkeys(ids, 1),
                    [] if step else [self._new(id, context + 1, context) for id in ids],
                    {} if step else self._place(ids, blocks),
                )
            )
        return follower.ran

    def initiations(self, prompts: int, length: int, iterations: int) -> list[Ran]:
        """Each iteration computes so many prompts of `length` tokens, all new."""
        follower = self._follower()
        released: list[str] = []
        for step in range(iterations):
            ids = [f"{step}/{i}" for i in range(prompts)]
            new = [self._new(id, length, 0) for id in ids]
            place = self._place(ids, self._blocks(length))
            follower.run(Iteration(EPOCH, step, dict.fromkeys(ids, length), new, place, released))
            released = ids
        return follower.ran

    def _follower(self) -> Follower:
        follower = Follower(self._engine)
        follower.reset(EPOCH)
        return follower

    def _new(self, id: str, length: int, computed: int) -> NewRequest:
        tokens = [self._draw(self._figures.vocab_size) for _ in range(length)]
        sampling = SamplingParams(self._figures.max_model_len, temperature=0.0, ignore_eos=True)
        return NewRequest(id, tokens, length, sampling, computed)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._figures.block_size)

    def _place(self, ids: list[str], blocks: int) -> dict[str, list[int]]:
        return {id: list(range(i * blocks, (i + 1) * blocks)) for i, id in enumerate(ids)}

    def _fill(self, blocks: int) -> None:
        """Write to the first blocks: pages nobody has written to are all one page, read from cache."""
        cache = self._engine._cache
        for store in (*cache.keys, *cache.values):
            store[:blocks].uniform_(-1.0, 1.0)
