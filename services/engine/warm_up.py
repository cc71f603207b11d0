"""WarmUp: iterations of no user's request. They pay what only first iterations pay, and measure an engine's speed and
bits. Imports no torch."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace
from math import inf
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
    """Warms up one loaded engine, once for all its owners. What requests have left in its blocks stays there."""

    def __init__(self, engine: Engine | NullEngine, deadly_token: int = -1, seconds: float = inf) -> None:
        """`seconds`: what the iteration took in another process of the same engine, which may have been less busy."""
        self._engine = engine
        self._deadly_token = deadly_token
        self._seconds = seconds
        self._warmth: Warmth | None = None

    @property
    def seconds(self) -> float:
        """The seconds that the iteration took; infinite before."""
        return self._warmth.seconds if self._warmth else inf

    def run(self) -> Warmth:
        """Run an iteration twice, unless this was done before: the first one compiles and reads from disk. Afterwards
        the engine knows no request."""
        if self._warmth is None:
            one = iteration("", self._engine.warm_up_blocks, self._deadly_token, self._engine.figures.vector)
            self._run(one)
            self._warmth = self._run(one)
        return self._warmth

    def __call__(self, epoch: str) -> Warmth:
        """What `run` has measured. Afterwards the engine serves `epoch` and knows no request."""
        warmth = self.run()
        self._engine.reset(epoch)
        return replace(warmth, iteration=replace(warmth.iteration, epoch=epoch))

    def _run(self, one: Iteration) -> Warmth:
        self._engine.reset(one.epoch)
        began = time.perf_counter()
        result = self._engine.run(one)
        seconds = time.perf_counter() - began
        self._engine.reset(one.epoch)
        packed = pack([result.tokens, result.logprobs, result.failed])
        return Warmth(one, min(seconds, self._seconds), hashlib.sha256(packed).hexdigest()[:8])
