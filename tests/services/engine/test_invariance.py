"""The fast path's promise: logits are bitwise the same alone, in a batch, in chunks, computed again, and elsewhere."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import Driver, Job
from tiny_models import make_tiny_model

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.requests import SamplingParams

VOCAB = 201
# no size is a multiple of a vector, but heads; more than one tile of rows, and of keys in the last of the requests
ODD = {"hidden_size": 72, "intermediate_size": 100, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 40}
LONG = {"max_position_embeddings": 280}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LONG,
    "qwen3": {**ODD, **LONG},
    "mistral": {"head_dim": 64, "sliding_window": 40, **LONG},
    "phi3": LONG,
    "olmo2": {**ODD, **LONG},
    "olmo3": {**ODD, **LONG, "sliding_window": 40},
    "glm4": {**ODD, **LONG},
    "arcee": {**ODD, **LONG},
    "hunyuan_v1_dense": {**ODD, **LONG},
    "cohere2": {**ODD, "hidden_size": 240, "sliding_window": 40, **LONG},
    "qwen2_moe": {
        **ODD,
        **LONG,
        "moe_intermediate_size": 52,
        "shared_expert_intermediate_size": 150,
        "num_experts": 12,
        "num_experts_per_tok": 3,
    },
    "glm4_moe": {**ODD, **LONG, "moe_intermediate_size": 52, "n_routed_experts": 12, "num_experts_per_tok": 3},
    "qwen3_moe": {**ODD, **LONG, "moe_intermediate_size": 52, "num_experts": 12, "num_experts_per_tok": 3},
    "gpt_oss": {
        **ODD,
        **LONG,
        "intermediate_size": 52,
        "sliding_window": 40,
        "num_experts": 12,
        "num_experts_per_tok": 3,
    },
    "gpt2": {"n_positions": 280},
    "gemma2": {"sliding_window": 9, **ODD, **LONG},
    "gemma3_text": {"sliding_window": 100, "head_dim": 256, "num_key_value_heads": 1, **LONG},
    # 16 query heads share a key head
    "gemma4_text": {
        **LONG,
        "hidden_size": 72,
        "intermediate_size": 100,
        "sliding_window": 100,
        "num_attention_heads": 16,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "global_head_dim": 128,
        "hidden_size_per_layer_input": 20,
    },
    "gemma4_unified_text": {
        **ODD,
        **LONG,
        "sliding_window": 40,
        "num_key_value_heads": 3,
        "global_head_dim": 72,
        "num_global_key_value_heads": 1,
    },
}
SETTINGS = EngineSettings("cpu", "float32", block_size=16, kv_blocks=160, threads=1)
VARIANTS = [
    ("llama", SETTINGS),
    ("llama", replace(SETTINGS, dtype="bfloat16", weights="int8")),
    ("qwen3", replace(SETTINGS, dtype="bfloat16")),
    ("mistral", replace(SETTINGS, dtype="bfloat16")),
    ("phi3", SETTINGS),
    ("olmo2", replace(SETTINGS, dtype="bfloat16")),
    ("olmo3", SETTINGS),
    ("glm4", replace(SETTINGS, dtype="bfloat16")),
    ("arcee", replace(SETTINGS, dtype="bfloat16")),
    ("hunyuan_v1_dense", SETTINGS),
    ("cohere2", SETTINGS),
    ("qwen2_moe", replace(SETTINGS, dtype="bfloat16", weights="int8")),
    ("glm4_moe", SETTINGS),
    ("qwen3_moe", replace(SETTINGS, dtype="bfloat16")),
    ("gpt_oss", replace(SETTINGS, dtype="bfloat16", weights="int8", kv_cache_dtype="int8_per_token_head")),
    ("gpt2", replace(SETTINGS, dtype="bfloat16")),
    ("gemma2", SETTINGS),
    ("gemma3_text", replace(SETTINGS, dtype="bfloat16")),
    ("gemma4_text", replace(SETTINGS, dtype="bfloat16", kv_cache_dtype="int8_per_token_head")),
    ("gemma4_unified_text", replace(SETTINGS, dtype="bfloat16", weights="int8")),
]
MORE = [  # of `make test-all`
    ("qwen3", replace(SETTINGS, weights="int8")),
    ("mistral", replace(SETTINGS, kv_cache_dtype="int8_per_token_head")),
    ("qwen3", replace(SETTINGS, dtype="bfloat16", weights="int8", kv_cache_dtype="int8_per_token_head")),
    ("gemma3_text", replace(SETTINGS, dtype="bfloat16", kv_cache_dtype="int8_per_token_head")),
    ("llama", replace(SETTINGS, dtype="bfloat16")),
    ("cohere2", replace(SETTINGS, dtype="bfloat16")),
    ("qwen2_moe", SETTINGS),
    ("qwen3_moe", SETTINGS),
    ("qwen3_moe", replace(SETTINGS, dtype="bfloat16", weights="int8")),
    ("gpt_oss", SETTINGS),
    ("gpt_oss", replace(SETTINGS, dtype="bfloat16")),
    ("gemma4_text", SETTINGS),
    ("gemma4_text", replace(SETTINGS, dtype="bfloat16")),
    ("gemma4_unified_text", SETTINGS),
    ("gpt2", replace(SETTINGS, kv_cache_dtype="int8_per_token_head")),
    ("gemma2", replace(SETTINGS, kv_cache_dtype="int8_per_token_head")),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        family: make_tiny_model(tmp_path_factory.mktemp(family), family, VOCAB, with_tokenizer=False, **config)
        for family, config in MODELS.items()
    }


def make_jobs() -> list[Job]:
    rng = random.Random(11)
    lengths = [rng.randint(1, 200) for _ in range(5)] + [250]
    return [
        Job(
            id=f"r{i}/0",
            prompt=[rng.randrange(VOCAB) for _ in range(length)],
            sampling=SamplingParams(max_new_tokens=20, seed=i, temperature=float(i % 2), logprobs=5),
        )
        for i, length in enumerate(lengths)
    ]


def name_of(family: str, settings: EngineSettings) -> str:
    return f"{family}-{settings.dtype}-{settings.weights}-{settings.kv_cache_dtype}"


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        pytest.param(family, settings, id=name_of(family, settings), marks=marks)
        for marks, variants in (((), VARIANTS), (pytest.mark.full, MORE))
        for family, settings in variants
    ],
)
def test_logits_are_bitwise_the_same(folders: dict[str, Path], family: str, settings: EngineSettings) -> None:
    """Compares log probabilities, which depend on a request's own logits alone. Each variant has its own batches."""
    engine = Engine.load(folders[family], settings)
    assert " native" in engine.figures.numerics
    check(engine, folders[family], settings, random.Random(name_of(family, settings)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    ("family", "dtype", "kept"),
    [(family, dtype, "auto") for family in ("llama", "qwen3", "phi3", "gpt2") for dtype in ("float32", "bfloat16")]
    # windows, soft caps, norms behind, heads of several sizes, shared keys, parallel halves, sinks, experts
    + [(family, "bfloat16", "auto") for family in ("gemma2", "gemma4_text", "olmo3", "cohere2", "gpt_oss", "glm4_moe")]
    + [(family, "bfloat16", "int8_per_token_head") for family in ("llama", "gemma4_text")],
)
def test_logits_are_bitwise_the_same_on_cuda(folders: dict[str, Path], family: str, dtype: str, kept: Any) -> None:
    settings = replace(SETTINGS, device="cuda", dtype=dtype, kv_cache_dtype=kept)
    engine = Engine.load(folders[family], settings)
    assert " triton " in engine.figures.numerics
    for seed in (1, 2):
        check(engine, folders[family], settings, random.Random(seed))


def check(engine: Engine, folder: Path, settings: EngineSettings, rng: random.Random) -> None:
    alone = [Driver(engine).run([job])[0] for job in make_jobs()]
    other = Engine.load(folder, replace(settings, block_size=5, kv_blocks=400, threads=3))
    at_once = Driver(other, max_batch=len(alone)).run(make_jobs())
    assert [job.logprobs for job in at_once] == [job.logprobs for job in alone]
    for again in (
        Driver(engine, rng).run(make_jobs()),
        Driver(engine, rng).run_interrupted(make_jobs(), 0.1),
        # goes on with blocks of another size and more threads
        Driver(other, rng).run(Driver(engine, rng).crash(make_jobs(), 25)),
    ):
        assert [job.output for job in again] == [job.output for job in alone]
        assert [job.logprobs for job in again] == [job.logprobs for job in alone]
