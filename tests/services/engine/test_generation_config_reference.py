"""A request without sampling fields is sampled as stock `generate()` samples with the same generation_config.json."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import Driver, Job
from transformers import AutoModelForCausalLM, GenerationConfig

from services.engine.engine import Engine
from services.engine.settings import EngineSettings

PROMPT = [5, 17, 5, 99, 101, 3, 17]
DRAWS = 400


def written(folder: Path, target: Path, **config: Any) -> Path:
    """The model in `folder` with a generation_config.json of transformers."""
    shutil.copytree(folder, target)
    GenerationConfig(do_sample=True, **config).save_pretrained(target)
    return target


def jobs(folder: Path, count: int, length: int) -> list[Job]:
    # a machine on which these tests are only collected may lack what a gateway needs
    from gateway.http.body import validate
    from gateway.schemas.completions import CompletionRequest
    from services.models.generation import SamplingDefaults

    fields = validate(CompletionRequest, {"prompt": PROMPT})
    defaults = SamplingDefaults.load(folder)
    assert defaults.max_new_tokens in (None, length)
    return [Job(f"r{seed}/0", PROMPT, fields.sampling(length, seed, defaults=defaults)) for seed in range(count)]


def run(folder: Path, made: list[Job]) -> list[Job]:
    engine = Engine.load(folder, EngineSettings("cpu", "float32", block_size=16, kv_blocks=1000, threads=1))
    return Driver(engine, max_batch=64).run(made)


def generate(folder: Path, **options: Any) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    ids = torch.tensor([PROMPT])
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)


def test_the_tokens_are_those_of_generate(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """`top_k` 1 leaves nothing to chance, and the penalty changes the tokens."""
    said = {"top_k": 1, "temperature": 0.7, "repetition_penalty": 1.7, "max_new_tokens": 12}
    folder = written(tiny_model("llama"), tmp_path / "model", **said)
    expected = generate(folder)[0, len(PROMPT) :].tolist()
    assert generate(folder, do_sample=False, repetition_penalty=1.0)[0, len(PROMPT) :].tolist() != expected
    [job] = run(folder, jobs(folder, 1, length=12))
    assert job.output == expected


@pytest.mark.parametrize(
    "said",
    [
        {"temperature": 0.4, "top_k": 12, "top_p": 1.0},
        {"temperature": 1.3, "top_k": 0, "top_p": 0.6, "repetition_penalty": 1.4},
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.1},
    ],
    ids=lambda said: " ".join(said),
)
def test_tokens_are_drawn_as_often_as_by_generate(
    said: dict[str, Any], tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = written(tiny_model("llama"), tmp_path / "model", **said)
    scores = generate(folder, max_new_tokens=1, output_scores=True, return_dict_in_generate=True).scores[0]
    likely = torch.softmax(scores[0], -1).tolist()
    drawn = Counter(job.output[0] for job in run(folder, jobs(folder, DRAWS, length=1)))
    assert all(likely[token] > 0 for token in drawn)
    distance = sum(abs(share - drawn[token] / DRAWS) for token, share in enumerate(likely)) / 2
    # of the same distribution, the expected distance is below sqrt(kept tokens / (2 pi draws))
    kept = sum(share > 0 for share in likely)
    assert distance < 2 * (kept / (6.28 * DRAWS)) ** 0.5
