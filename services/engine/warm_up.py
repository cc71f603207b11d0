"""WarmUp: iterations that are nobody's, which pay what only comes once and show how fast an engine is."""

from __future__ import annotations

import time
from typing import Protocol

from services.messages import Iteration, IterationResult, NewRequest
from services.requests import SamplingParams

TOKENS = 16
ID = "warm-up"


class Engine(Protocol):
    def reset(self, epoch: str) -> None: ...
    def run(self, iteration: Iteration) -> IterationResult: ...


def iteration(epoch: str, block_size: int, deadly_token: int = -1) -> Iteration:
    """A prompt of `TOKENS` tokens, none of them `deadly_token`."""
    prompt = [1 if deadly_token == 0 else 0] * TOKENS
    new = NewRequest(ID, prompt, TOKENS, SamplingParams(1, temperature=0.0))
    return Iteration(epoch, 0, {ID: TOKENS}, [new], {ID: list(range(-(-TOKENS // block_size)))})


class WarmUp:
    """Of one loaded engine, whoever it serves."""

    def __init__(self, engine: Engine, block_size: int, deadly_token: int = -1) -> None:
        self._engine = engine
        self._block_size = block_size
        self._deadly_token = deadly_token
        self._cold = True

    def __call__(self, epoch: str) -> tuple[Iteration, float]:
        """An iteration and its seconds, without what a first one pays to compile or to read from disk: the second of
        two, or the only one where the engine had some before. It then serves `epoch` and knows no request."""
        one = iteration(epoch, self._block_size, self._deadly_token)
        if self._cold:
            self._run(one)
            self._cold = False
        return one, self._run(one)

    def _run(self, one: Iteration) -> float:
        self._engine.reset(one.epoch)
        began = time.perf_counter()
        self._engine.run(one)
        seconds = time.perf_counter() - began
        self._engine.reset(one.epoch)
        return seconds
