"""Bad words and allowed tokens: greedy tokens equal those of stock `generate()` with the same words and tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from driver import Driver, Job
from transformers import AutoModelForCausalLM

from services.engine.engine import Engine
from services.requests import SamplingParams

VOCAB, LAST = 200, 199  # LAST ends all prompts and begins no word: transformers looks at prompts, too
GREEDY = SamplingParams(16, temperature=0.0)


@pytest.fixture(scope="module")
def plain(llama: Engine) -> list[Job]:
    """Jobs and their outputs without limits."""
    rng = random.Random(4)
    prompts = [[*(rng.randrange(2, LAST) for _ in range(rng.randint(1, 30))), LAST] for _ in range(6)]
    return Driver(llama).run([Job(f"{i}/0", prompt, GREEDY) for i, prompt in enumerate(prompts)])


def words_in(output: list[int]) -> tuple[tuple[int, ...], ...]:
    """A token, a pair and three tokens of the outputs, and words that no output has."""
    told = [token for token in output if token != LAST]
    return ((told[-1],), (told[3], told[4]), (told[6], told[7], told[8]), (told[0], 1, 1))


def test_bad_words_are_those_of_generate(llama: Engine, plain: list[Job], tiny_model: Callable[[str], Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    jobs = [Job(job.id, job.prompt, replace(GREEDY, bad_words=words_in(job.output))) for job in plain]
    Driver(llama, random.Random(1)).run(jobs)
    for job, unhindered in zip(jobs, plain, strict=True):
        words = [list(word) for word in job.sampling.bad_words]
        assert job.output == stock(model, job, bad_words_ids=words)
        assert job.output != unhindered.output
        assert not any(job.output[i : i + len(word)] == word for word in words for i in range(16))


def test_allowed_tokens_are_those_of_generate(
    llama: Engine, plain: list[Job], tiny_model: Callable[[str], Path]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    allowed = tuple(range(3, VOCAB, 4))
    jobs = [Job(job.id, job.prompt, replace(GREEDY, allowed_token_ids=allowed)) for job in plain]
    Driver(llama, random.Random(1)).run(jobs)
    for job in jobs:
        assert job.output == stock(model, job, suppress_tokens=sorted(set(range(VOCAB)) - set(allowed)))
        assert set(job.output) <= set(allowed)


def stock(model: torch.nn.Module, job: Job, **asked: object) -> list[int]:
    ids = torch.tensor([job.prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False, **asked)
    tokens: list[int] = output[0, len(job.prompt) :].tolist()
    return tokens
