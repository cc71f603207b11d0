"""What short weights and short keys and values cost in quality: the perplexity of one fixed text."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from load.markdown import table
from services.engine.engine import Engine
from services.engine.flat_batch import pack
from services.engine.rows import Row
from services.engine.settings import EngineSettings
from services.requests import SamplingParams

TEXT = Path(__file__).parent / "text.txt"
CHUNK = 256  # tokens of an iteration
VARIANTS: tuple[dict[str, Any], ...] = (
    {"dtype": "float32"},
    {"dtype": "bfloat16"},
    {"dtype": "float32", "weights": "int8"},
    {"dtype": "bfloat16", "weights": "int8"},
)


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean negative log likelihood of `tokens` tokens, each after all before it."""

    numerics: str
    weights: str
    cache: str
    tokens: int
    value: float


def measure_perplexities(folder: Path, settings: EngineSettings) -> Iterator[Perplexity]:
    """Of the model in `folder` with each way to keep weights, keys and values that its path has."""
    ids = text_ids(folder)
    for variant in VARIANTS:
        engine = Engine.load(folder, replace(settings, kv_blocks=len(ids) // settings.block_size + 1, **variant))
        used = ids[: engine.figures.max_model_len]
        decoder, value = engine.decoder, perplexity(engine, used)
        assert value is not None, "an engine of one process has all logits"
        yield Perplexity(
            numerics=engine.figures.numerics,
            weights=_name(decoder.weight_dtype),
            cache=_name(decoder.cache_dtype),
            tokens=len(used) - 1,
            value=value,
        )


def text_ids(folder: Path) -> list[int]:
    """The text in the tokens of the model in `folder`."""
    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT.read_text()).ids


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def perplexity(engine: Engine, ids: list[int]) -> float | None:
    """Of `ids`, in the engine's first blocks; None on a rank that has no logits. All ranks must be told to."""
    size = engine.figures.block_size
    row = Row("text", ids, len(ids), SamplingParams(1), blocks=array("i", range(-(-len(ids) // size))))
    total = 0.0
    while row.num_computed_tokens < len(ids) - 1:
        begin = row.num_computed_tokens
        count = min(CHUNK, len(ids) - 1 - begin)
        batch = replace(pack([(row, count)], size), ends=np.arange(count, dtype=np.int32))
        with torch.inference_mode():
            logits = engine.decoder.forward(batch)
        row.num_computed_tokens += count
        if logits is not None:
            follow = torch.tensor(ids[begin + 1 : begin + 1 + count], device=logits.device)
            logs = logits.float().log_softmax(dim=-1)
            total -= float(logs.gather(1, follow[:, None]).sum(dtype=torch.float64))
    return math.exp(total / (len(ids) - 1)) if total else None


def perplexities_table(found: list[Perplexity]) -> str:
    """Each beside the first."""
    first = found[0].value
    rows = [[p.weights, p.cache, p.tokens, f"{p.value:.4f}", f"{p.value / first - 1:+.3%}"] for p in found]
    return table(["weights", "keys and values", "tokens", "perplexity", "beside the first"], rows)
