"""The check that each family has to pass: greedy float32 tokens equal those of stock `generate()`."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from driver import Driver, Job
from stock_model import likeliest
from transformers import AutoModelForCausalLM

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.requests import SamplingParams

STOCK = EngineSettings("cpu", "float32", fast_path=False, block_size=4, kv_blocks=200, threads=1)


def make_jobs(rng: random.Random, count: int = 8, vocab: int = 200, shortest: int = 1) -> list[Job]:
    return [
        Job(
            id=f"r{i}/0",
            prompt=[rng.randrange(2, vocab - 1) for _ in range(rng.randint(shortest, 40))],
            sampling=SamplingParams(max_new_tokens=rng.randint(1, 16), temperature=0.0),
        )
        for i in range(count)
    ]


def check_greedy(folder: Path, jobs: list[Job], models: Any = AutoModelForCausalLM) -> None:
    """Assert that the outputs are what greedy `generate()` of transformers gives for each request alone."""
    model = models.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    for job in jobs:
        assert len(job.output) == job.sampling.max_new_tokens
        assert job.output == likeliest(model, job.prompt, job.output), job.id


def check_family(
    folder: Path,
    settings: EngineSettings = STOCK,
    shortest: int = 1,
    reference: Path | None = None,
    models: Any = AutoModelForCausalLM,
) -> Engine:
    """Jobs in order; in random batches and chunks, over scattered blocks and with preemptions; and interrupted and
    continued by another engine with other blocks. `reference`: the folder that transformers read, as one of
    `models`. Returns the engine."""

    def jobs() -> list[Job]:
        return make_jobs(random.Random(7), shortest=shortest)

    engine = Engine.load(folder, settings)
    in_order = Driver(engine).run(jobs())
    check_greedy(reference or folder, in_order, models)
    expected = [job.output for job in in_order]
    assert len({token for output in expected for token in output}) > 10  # one token again and again proves little
    interrupted = Driver(engine, random.Random(1)).run_interrupted(jobs(), 0.1)
    assert [job.output for job in interrupted] == expected
    other, rng = Engine.load(folder, replace(settings, block_size=5)), random.Random(2)
    continued = Driver(other, rng).run(Driver(engine, rng).crash(jobs(), 12))
    assert [job.output for job in continued] == expected
    return engine
