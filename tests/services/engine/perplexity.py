"""The perplexity of one fixed text: what short weights, short keys and values, and ranks cost in quality."""

from __future__ import annotations

import math
from pathlib import Path

from tokenizers import Tokenizer

from services.engine.engine import Engine
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams

TEXT = Path(__file__).with_name("perplexity_text.txt")
EPOCH = "perplexity"
CHUNK = 256  # tokens of an iteration


def text_ids(folder: Path) -> list[int]:
    """The token ids of the text with the tokenizer of the model in `folder`."""
    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT.read_text()).ids


def perplexity(engine: Engine, ids: list[int]) -> float | None:
    """The perplexity of `ids`, from the log probabilities of a prompt in the engine's first blocks; None on a rank that
    has no logits. All ranks must call it."""
    engine.reset(EPOCH)
    new = NewRequest("text", ids, len(ids), SamplingParams(1, logprobs=0, prompt_logprobs=0))
    blocks = list(range(-(-len(ids) // engine.figures.block_size)))
    scores = None
    for step, begin in enumerate(range(0, len(ids), CHUNK)):
        first = step == 0
        scheduled = {"text": min(CHUNK, len(ids) - begin)}
        iteration = Iteration(EPOCH, step, scheduled, [new] if first else [], {"text": blocks} if first else {})
        result = engine.run(iteration)
        assert not result.failed, result.failed
        if "text" in result.logprobs:
            scores = result.logprobs["text"].prompt
    return None if scores is None else math.exp(-math.fsum(scores.tokens) / len(scores.tokens))
