"""Ranks with NCCL between them, each on a GPU of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from driver import Driver, Job
from family_check import check_greedy, make_jobs
from rank_processes import RankProcesses

from services.engine.settings import EngineSettings
from services.messages import Iteration, NewRequest

GPUS = torch.cuda.device_count()

pytestmark = pytest.mark.gpu

SETTINGS = EngineSettings("cuda", "float32", block_size=4, kv_blocks=200)


def needs(gpus: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(gpus > GPUS, reason=f"{gpus} GPUs are needed, here are {GPUS}")


LAYOUTS = [
    pytest.param(2, 1, marks=needs(2)),
    pytest.param(1, 2, marks=needs(2)),
    pytest.param(2, 2, marks=needs(4)),
]


@pytest.mark.parametrize(("tp", "pp"), LAYOUTS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_tokens_are_those_of_generate(family: str, tp: int, pp: int, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(family)
    with RankProcesses(folder, replace(SETTINGS, tp=tp, pp=pp)) as ranks:
        for rng in (None, random.Random(1)):
            jobs = Driver(ranks, rng).run(make_jobs(random.Random(7)))
            check_greedy(folder, jobs)


@pytest.mark.parametrize(("tp", "pp"), LAYOUTS)
def test_bits_depend_on_the_request_alone(tp: int, pp: int, tiny_model: Callable[[str], Path]) -> None:
    """Compares log probabilities in bfloat16, alone and in a batch."""
    settings = replace(SETTINGS, dtype="bfloat16", tp=tp, pp=pp)
    alone, together = ([asking(job) for job in make_jobs(random.Random(7))] for _ in range(2))
    with RankProcesses(tiny_model("llama"), settings) as ranks:
        for job in alone:
            Driver(ranks).run([job])
        Driver(ranks, random.Random(1)).run(together)
    assert [(job.output, job.logprobs) for job in together] == [(job.output, job.logprobs) for job in alone]


def asking(job: Job) -> Job:
    return Job(job.id, job.prompt, replace(job.sampling, logprobs=3))


@pytest.mark.parametrize(("tp", "pp"), LAYOUTS)
def test_a_new_owner_frees_a_device_that_waits(tp: int, pp: int, tiny_model: Callable[[str], Path]) -> None:
    """The last owner died after it sent an iteration to one rank and not to the others."""
    folder = tiny_model("llama")
    with RankProcesses(folder, replace(SETTINGS, tp=tp, pp=pp)) as ranks:
        for epoch in ("f", "g"):
            job = make_jobs(random.Random(9), count=1)[0]
            ranks.reset("e")
            new = NewRequest(job.id, job.prompt, len(job.prompt), job.sampling)
            told = ranks.layout.sampler
            ranks.one(told, "run", Iteration("e", 1, {job.id: len(job.prompt)}, [new], {job.id: list(range(50))}))
            for rank in range(ranks.layout.size):
                ranks.one(rank, "link", epoch)
            with pytest.raises(RuntimeError):
                ranks.answer(told)
            for rank in range(ranks.layout.size):
                ranks.answer(rank)
            jobs = Driver(ranks).run(make_jobs(random.Random(9), count=3))
            check_greedy(folder, jobs)
