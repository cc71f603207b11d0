"""Batches: iterations of one kind, put together by hand, with no scheduler."""

from __future__ import annotations

import random
from collections.abc import Iterator

from load.bench.engine.follower import Follower, Ran
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
        return self._known(tokens) and batch * self._blocks(tokens) <= self._figures.num_blocks

    def fits_mixed(self, batch: int, tokens: int, prompts: int, length: int) -> bool:
        """Whether prompts can be held beside them."""
        blocks = batch * self._blocks(tokens) + prompts * self._blocks(length)
        return self._known(max(tokens, length)) and blocks <= self._figures.num_blocks

    def increments(self, batch: int, context: int, iterations: int) -> list[Ran]:
        """`batch` requests go on by a token each from `context` tokens, whole blocks, whose keys and values are
        random numbers."""
        return self.mixed(batch, context, 0, 0, iterations)

    def initiations(self, prompts: int, length: int, iterations: int) -> list[Ran]:
        """Each iteration computes so many prompts of `length` tokens, all new."""
        return self.mixed(0, 0, prompts, length, iterations)

    def mixed(self, batch: int, context: int, prompts: int, length: int, iterations: int) -> list[Ran]:
        """Both in each iteration: increments of the same requests, and prompts that are new each time."""
        return list(self.one_by_one(batch, context, prompts, length, iterations))

    def one_by_one(self, batch: int, context: int, prompts: int, length: int, iterations: int) -> Iterator[Ran]:
        """As above; each iteration is run when it is asked for."""
        assert context % self._figures.block_size == 0, f"{context = } {self._figures.block_size = }"
        blocks = self._blocks(context + iterations)
        self._fill(batch * blocks)
        follower = self._follower()
        going = [str(i) for i in range(batch)]
        released: list[str] = []
        for step in range(iterations):
            begun = [f"{step}/{i}" for i in range(prompts)]
            new = [self._new(id, length, 0) for id in begun]
            place = self._place(begun, self._blocks(length), batch * blocks)
            if step == 0:
                new += [self._new(id, context + 1, context) for id in going]
                place |= self._place(going, blocks)
            scheduled = dict.fromkeys(going, 1) | dict.fromkeys(begun, length)
            follower.run(Iteration(EPOCH, step, scheduled, new, place, released))
            released = begun
            yield follower.ran[-1]

    def whole(self, batch: int, prompt: int, output: int) -> list[Ran]:
        """`batch` equal requests from their prompts to their ends, one iteration after the other."""
        follower = self._follower()
        ids = [str(i) for i in range(batch)]
        new = [self._new(id, prompt, 0) for id in ids]
        place = self._place(ids, self._blocks(prompt + output))
        follower.run(Iteration(EPOCH, 0, dict.fromkeys(ids, prompt), new, place))
        for step in range(1, output):
            follower.run(Iteration(EPOCH, step, dict.fromkeys(ids, 1)))
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

    def _place(self, ids: list[str], blocks: int, first: int = 0) -> dict[str, list[int]]:
        return {id: list(range(first + i * blocks, first + (i + 1) * blocks)) for i, id in enumerate(ids)}

    def _known(self, tokens: int) -> bool:
        return tokens <= self._figures.max_model_len

    def _fill(self, blocks: int) -> None:
        """Write to the first blocks: pages nobody has written to are all one page, read from cache."""
        cache = self._engine._cache
        for store in (*cache.keys, *cache.values):
            store[:blocks].uniform_(-1.0, 1.0)
