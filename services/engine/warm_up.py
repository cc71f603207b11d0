"""WarmUp: iterations of no user's request. They pay what only first iterations pay, and measure an engine's speed and
bits. Imports no torch."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.engine.settings import WARM_UP_TOKENS
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams
from services.wire import pack

if TYPE_CHECKING:
    from services.engine.engine import Engine
    from services.engine.null import NullEngine

LOGPROBS = 16
ID = "warm-up"


def iteration(epoch: str, blocks: list[int], deadly_token: int = -1, vector: int = 0) -> Iteration:
    """A prompt of `WARM_UP_TOKENS` different tokens, none of them `deadly_token`, in these blocks; for a `vector` of so
    many numbers if the engine makes vectors."""
    prompt = [token for token in range(WARM_UP_TOKENS + 1) if token != deadly_token][:WARM_UP_TOKENS]
    # so that the sampler is compiled, too
    sampling = SamplingParams(1, top_k=LOGPROBS, top_p=0.9, logprobs=LOGPROBS, vector=vector)
    new = NewRequest(ID, prompt, WARM_UP_TOKENS, sampling)
    return Iteration(epoch, 0, {ID: WARM_UP_TOKENS}, [new], {ID: blocks})


@dataclass(frozen=True, slots=True)
class Warmth:
    """An iteration, its seconds, and a hash of its result's bits. Engines with different hashes may give different
    tokens."""

    iteration: Iteration
    seconds: float
    bits: str


class WarmUp:
    """Warms up one loaded engine, for each of its owners. What requests have left in its blocks stays there."""

    def __init__(self, engine: Engine | NullEngine, deadly_token: int = -1) -> None:
        self._engine = engine
        self._deadly_token = deadly_token
        self._cold = True

    def __call__(self, epoch: str) -> Warmth:
        """Run an iteration; the first time run another one before it, which compiles and reads from disk. Afterwards
        the engine serves `epoch` and knows no request."""
        one = iteration(epoch, self._engine.warm_up_blocks, self._deadly_token, self._engine.figures.vector)
        if self._cold:
            self._run(one)
            self._cold = False
        return self._run(one)

    def _run(self, one: Iteration) -> Warmth:
        self._engine.reset(one.epoch)
        began = time.perf_counter()
        result = self._engine.run(one)
        seconds = time.perf_counter() - began
        self._engine.reset(one.epoch)
        packed = pack([result.tokens, result.logprobs, result.failed])
        return Warmth(one, seconds, hashlib.sha256(packed).hexdigest()[:8])
