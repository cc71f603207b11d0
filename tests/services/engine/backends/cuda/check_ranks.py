"""Ranks of the CUDA backend in Triton's interpreter, with gloo where a GPU has NCCL. Run by test_interpreted.py."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from driver import Driver, Job
from interpreted import make_engine, make_rank
from rank_processes import RankProcesses
from tiny_models import make_tiny_model

from services.engine.settings import EngineSettings
from services.requests import SamplingParams

# three KV heads and layers, odd widths: no two ranks have as much
SMALL = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}
MODELS = {
    "llama": {**SMALL, "intermediate_size": 65},
    "qwen3": {**SMALL, "intermediate_size": 65},
    "gpt_oss": {**SMALL, "intermediate_size": 21, "layer_types": ["full_attention", *["sliding_attention"] * 2]},
    "gemma2": {**SMALL, "intermediate_size": 65, "layer_types": ["full_attention", *["sliding_attention"] * 2]},
    "gpt2": {"n_embd": 24, "n_layer": 3, "n_head": 3, "n_inner": 67, "n_positions": 63},
}


def make_jobs() -> list[Job]:
    rng = random.Random(3)
    sampling = [SamplingParams(3, temperature=0.0), SamplingParams(2, seed=1, logprobs=2, prompt_logprobs=1)]
    return [Job(f"r{i}/0", [rng.randrange(2, 66) for _ in range(i * 17 + 1)], s) for i, s in enumerate(sampling)]


LAYOUTS = [(2, 2), (2, 1), (1, 2)]
CASES = [(family, tp, pp) for tp, pp in LAYOUTS for family in MODELS]


@pytest.mark.parametrize(
    ("family", "tp", "pp"),
    [pytest.param(*case, marks=pytest.mark.chaos if i else pytest.mark.full) for i, case in enumerate(CASES)],
)
def test_tokens_are_those_of_one_process(family: str, tp: int, pp: int, tmp_path: Path) -> None:
    """One process of the same backend."""
    folder = make_tiny_model(tmp_path, family, 67, with_tokenizer=False, **MODELS[family])
    expected = Driver(make_engine(folder, 8)).run(make_jobs())
    settings = EngineSettings("cpu", "float32", block_size=8, tp=tp, pp=pp)
    with RankProcesses(folder, settings, make_rank) as ranks:
        assert ranks.figures.numerics == f"triton tp{tp} pp{pp}"
        found = Driver(ranks, random.Random(1)).run(make_jobs())
    assert [job.output for job in found] == [job.output for job in expected]
    (scores,), (other,) = ([job.logprobs[0].prompt for job in jobs if job.logprobs] for jobs in (found, expected))
    assert scores is not None
    assert other is not None
    assert scores.tokens == pytest.approx(other.tokens, abs=1e-4)
