"""What scoring a prompt costs: an iteration that computes one prompt, with its log probabilities and without."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from load.bench.engine.batches import EPOCH
from load.bench.engine.timing import Seconds
from load.markdown import table
from services.engine.engine import Engine
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams

LENGTH = 512  # tokens of the prompt
ASKED = (None, 0, 1, 20)  # prompt_logprobs
ROUNDS = 7  # of all kinds in turn, after one that is not counted


@dataclass(frozen=True, slots=True)
class Scoring:
    """An iteration of one prompt of `tokens` tokens. `asked` is its prompt_logprobs."""

    asked: int | None
    tokens: int
    seconds: Seconds


def measure_scoring(engine: Engine) -> Iterator[Scoring]:
    """All kinds in turn, so that what slows the machine slows all of them."""
    figures, draw = engine.figures, random.Random(0)
    length = min(LENGTH, figures.max_model_len - 1)
    seconds: dict[int | None, list[float]] = {asked: [] for asked in ASKED}
    for _ in range(1 + ROUNDS):
        for asked, taken in seconds.items():
            prompt = [draw.randrange(figures.vocab_size) for _ in range(length)]
            taken.append(_seconds(engine, prompt, asked))
    for asked, (_, *counted) in seconds.items():
        yield Scoring(asked, length, Seconds(min(counted), statistics.median(counted)))


def scoring_table(measured: list[Scoring]) -> str:
    """Milliseconds, and each beside the prompt that is not scored."""
    plain = measured[0].seconds
    rows = []
    for one in measured:
        best, median = one.seconds
        name = "none" if one.asked is None else one.asked
        rows.append([name, one.tokens, f"{best * 1e3:,.1f}", f"{median * 1e3:,.1f}", f"{best / plain.best:.2f}"])
    return table(["prompt_logprobs", "tokens", "best, ms", "median, ms", "beside none"], rows)


def _seconds(engine: Engine, prompt: list[int], asked: int | None) -> float:
    """Of one iteration that computes the prompt and draws a token."""
    sampling = SamplingParams(1, temperature=0.0, logprobs=None if asked is None else 0, prompt_logprobs=asked)
    blocks = list(range(-(-len(prompt) // engine.figures.block_size)))
    engine.reset(EPOCH)
    new = NewRequest("one", prompt, len(prompt), sampling)
    result = engine.run(Iteration(EPOCH, 0, {"one": len(prompt)}, [new], {"one": blocks}))
    assert not result.failed, result.failed
    return result.elapsed
