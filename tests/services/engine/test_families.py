"""The oracle: greedy float32 tokens equal those of stock `generate()`, one request at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from driver import Driver, Job
from transformers import AutoModelForCausalLM

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.requests import SamplingParams

LEAN = ["llama", "qwen3", "mistral", "gpt2"]
FAMILIES = ["llama", "qwen3", "mistral", "gpt2", "opt", "gpt_neox", "gemma", "stablelm"]


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


@pytest.mark.parametrize(("family", "lean"), [(f, False) for f in FAMILIES] + [(f, True) for f in LEAN])
def test_greedy_tokens_equal_generate(family: str, lean: bool, tiny_model: Callable[[str], Path]) -> None:
    """In arrival order, then twice in random order, composition and chunks, over scattered blocks."""
    folder = tiny_model(family)
    engine = Engine.load(folder, EngineSettings("cpu", "float32", lean=lean, block_size=4, kv_blocks=200, threads=1))
    assert engine.figures.numerics.endswith("native") == lean
    expected = generate(folder, make_jobs(random.Random(7)))
    for rng in (None, random.Random(1), random.Random(2)):
        jobs = Driver(engine, rng).run(make_jobs(random.Random(7)))
        assert [job.output for job in jobs] == expected


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
    jobs = Driver(engine, random.Random(1)).run(make_jobs(random.Random(7)))
    assert [job.output for job in jobs] == generate(folder, make_jobs(random.Random(7)))
