"""What short weights and short keys and values cost in quality, by the perplexity of one fixed text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from load.report import table
from services.engine.engine import Engine
from services.engine.settings import EngineSettings, choose_block_size
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams

TEXT = Path(__file__).parent / "text.txt"
EPOCH = "perplexity"
CHUNK = 256  # tokens of an iteration
VARIANTS: tuple[dict[str, Any], ...] = (
    {"dtype": "float32"},
    {"dtype": "float32", "kv_cache_dtype": "bfloat16"},
    {"dtype": "float32", "kv_cache_dtype": "int8_per_token_head"},
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "kv_cache_dtype": "int8_per_token_head"},
    {"dtype": "float32", "weights": "int8"},
    {"dtype": "bfloat16", "weights": "int8"},
    {"dtype": "float32", "weights": "int8", "kv_cache_dtype": "int8_per_token_head"},
)


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean negative log likelihood of `tokens` tokens, each given all tokens before it."""

    numerics: str
    dtype: str
    weights: str
    cache: str
    tokens: int
    value: float


def measure_perplexities(folder: Path, settings: EngineSettings) -> Iterator[Perplexity]:
    """The perplexity of the model in `folder` for each way to store weights, keys and values."""
    ids = text_ids(folder)
    for variant in VARIANTS:
        engine = Engine.load(
            folder, replace(settings, kv_blocks=len(ids) // choose_block_size(settings) + 1, **variant)
        )
        used = ids[: engine.figures.max_model_len]
        decoder, value = engine.decoder, perplexity(engine, used)
        assert value is not None, "an engine of one process has all logits"
        yield Perplexity(
            numerics=engine.figures.numerics,
            dtype=variant["dtype"],
            weights=_name(decoder.weight_dtype),
            cache=_name(decoder.cache_dtype),
            tokens=len(used) - 1,
            value=value,
        )


def text_ids(folder: Path) -> list[int]:
    """The token ids of the text with the tokenizer of the model in `folder`."""
    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT.read_text()).ids


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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


def perplexities_table(found: list[Perplexity]) -> str:
    """Each compared with the first."""
    first = found[0].value
    rows = [[p.dtype, p.weights, p.cache, p.tokens, f"{p.value:.4f}", f"{p.value / first - 1:+.3%}"] for p in found]
    return table(["dtype", "weights", "keys and values", "tokens", "perplexity", "compared with the first"], rows)
