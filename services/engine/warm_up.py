"""A first iteration that is nobody's: it pays what only comes once, and shows how fast the engine is."""

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


def warm_up(engine: Engine, one: Iteration) -> float:
    """Seconds of the second of two: the first may compile, or read from disk. The engine then knows no request."""
    for _ in range(2):
        engine.reset(one.epoch)
        began = time.perf_counter()
        engine.run(one)
    seconds = time.perf_counter() - began
    engine.reset(one.epoch)
    return seconds
