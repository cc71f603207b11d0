"""The oracle: greedy float32 tokens equal those of stock `generate()`, one request at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import Driver, Job
from tiny_models import FAMILIES as TINY
from tiny_models import make_tiny_model
from transformers import AutoConfig, AutoModelForCausalLM

from services.engine.engine import Engine
from services.engine.families.registry import FAMILIES as FAST
from services.engine.families.registry import spec_of
from services.engine.settings import EngineSettings
from services.requests import SamplingParams

FAMILIES = [*FAST, "opt", "gpt_neox", "gemma", "stablelm"]


def make_jobs(rng: random.Random, count: int = 8, vocab: int = 200) -> list[Job]:
    return [
        Job(
            id=f"r{i}/0",
            prompt=[rng.randrange(2, vocab - 1) for _ in range(rng.randint(1, 40))],
            sampling=SamplingParams(max_new_tokens=rng.randint(1, 16), temperature=0.0),
        )
        for i in range(count)
    ]


def generate(folder: Path, jobs: list[Job]) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    outputs = []
    for job in jobs:
        ids = torch.tensor([job.prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=job.sampling.max_new_tokens, do_sample=False
        )
        outputs.append(out[0, len(job.prompt) :].tolist())
    return outputs


@pytest.mark.parametrize(("family", "fast_path"), [(f, False) for f in FAMILIES] + [(f, True) for f in FAST])
def test_greedy_tokens_equal_generate(family: str, fast_path: bool, tiny_model: Callable[[str], Path]) -> None:
    """In arrival order, then twice in random order, batches and chunks, over scattered blocks."""
    folder = tiny_model(family)
    engine = Engine.load(
        folder, EngineSettings("cpu", "float32", fast_path=fast_path, block_size=4, kv_blocks=200, threads=1)
    )
    assert engine.figures.numerics.endswith("native") == fast_path
    expected = generate(folder, make_jobs(random.Random(7)))
    for rng in (None, random.Random(1), random.Random(2)):
        jobs = Driver(engine, rng).run(make_jobs(random.Random(7)))
        assert [job.output for job in jobs] == expected


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "one table for both ends": ("llama", {"tie_word_embeddings": True}),
    "a bias in attention": ("llama", {"attention_bias": True}),
    "as many KV heads as heads": ("llama", {"num_key_value_heads": 4}),
    "heads wider than the model": ("qwen3", {"head_dim": 32}),
    "linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    "llama3 rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_the_fast_families(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    folder = make_tiny_model(tmp_path, family, with_tokenizer=False, **changes)
    engine = Engine.load(folder, EngineSettings("cpu", "float32", block_size=4, kv_blocks=200, threads=1))
    assert engine.figures.numerics.endswith("native")
    jobs = Driver(engine, random.Random(1)).run(make_jobs(random.Random(7)))
    assert [job.output for job in jobs] == generate(folder, make_jobs(random.Random(7)))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"quantization_config": {"quant_method": "fp8"}}),
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"mlp_bias": True}),
        ("mistral", {"sliding_window": 16}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("opt", {}),
    ],
)
def test_what_the_fast_path_leaves_to_transformers(family: str, changes: dict[str, Any]) -> None:
    plain = AutoConfig.for_model(family, **TINY[family])
    assert (spec_of(plain) is None) == (family == "opt")
    assert spec_of(AutoConfig.for_model(family, **{**TINY[family], **changes})) is None


def test_texts_vary(tiny_model: Callable[[str], Path]) -> None:
    """The oracle would prove little if the random models repeated one token."""
    outputs = generate(tiny_model("llama"), make_jobs(random.Random(7)))
    assert len({token for output in outputs for token in output}) > 20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_generate_on_cuda(family: str, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(family)
    engine = Engine.load(folder, EngineSettings(device="cuda", dtype="float32", block_size=4, kv_blocks=200))
    assert engine.figures.numerics.endswith("triton") == (family in FAST)
    jobs = Driver(engine, random.Random(1)).run(make_jobs(random.Random(7)))
    assert [job.output for job in jobs] == generate(folder, make_jobs(random.Random(7)))
