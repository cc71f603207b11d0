"""Requests with LoRA adapters, and without, in one batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from driver import Driver, Job
from family_check import make_jobs
from peft_adapters import generate, keep, make_adapter

from services.engine.engine import Engine
from services.engine.settings import EngineSettings

SETTINGS = EngineSettings("cpu", "float32", block_size=4, kv_blocks=256, threads=1)
# joined and separate products, weights [inputs, outputs], no gates, parallel halves, norms behind, interleaved pairs,
# layers without keys, shared experts, sinks
FAMILIES = ["llama", "qwen3", "phi3", "gpt2", "arcee", "cohere2", "olmo2", "glm4", "gemma3_text"]
TARGETS = {
    "gemma4_text": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "qwen2_moe": ["q_proj", "v_proj", "o_proj", "shared_expert.gate_proj", "shared_expert.down_proj"],
    "gpt_oss": ["q_proj", "k_proj", "v_proj", "o_proj"],
}


def with_adapters(jobs: list[Job], digests: list[str]) -> list[Job]:
    for i, job in enumerate(jobs):
        job.sampling = replace(job.sampling, adapter=digests[i % len(digests)])
    return jobs


@pytest.mark.parametrize("fast_path", [True, False])
@pytest.mark.parametrize("family", [*FAMILIES, *TARGETS])
def test_tokens_equal_those_of_peft(
    tiny_model: Callable[[str], Path], tmp_path: Path, family: str, fast_path: bool
) -> None:
    folder, targets = tiny_model(family), TARGETS.get(family, "all-linear")
    adapters = {
        "a" * 64: make_adapter(folder, tmp_path / "a", 1, target_modules=targets),
        "b" * 64: make_adapter(folder, tmp_path / "b", 2, target_modules=targets, r=20, use_rslora=True),
    }
    for digest, adapter in adapters.items():
        keep(adapter, tmp_path / "files", digest)
    jobs = with_adapters(make_jobs(random.Random(7), 9), ["", *adapters])
    engine = Engine.load(folder, replace(SETTINGS, adapters=tmp_path / "files", fast_path=fast_path))
    assert (" native" in engine.figures.numerics) == fast_path
    expected = generate(folder, adapters, jobs)
    assert [job.output for job in Driver(engine, random.Random(1), 6).run(jobs)] == expected
