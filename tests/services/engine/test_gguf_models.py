"""Whole GGUF files of several families, whose products have all types: as stored they give the bits of widened ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from driver import Driver, Job
from gguf_files import write_gguf
from tiny_models import make_tiny_model

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.models.converter import convert_gguf
from services.requests import SamplingParams

TYPES = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_1", "Q5_0", "Q3_K", "Q2_K", "IQ4_XS", "IQ4_NL", "BF16", "Q4_0", "Q5_1")


def jobs() -> list[Job]:
    drawn = torch.Generator().manual_seed(3)
    return [
        Job(f"r{i}/0", torch.randint(300, (n,), generator=drawn).tolist(), SamplingParams(max_new_tokens=6, logprobs=5))
        for i, n in enumerate((1, 7, 40))
    ]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_bits_are_those_of_the_widened_weights(family: str, tmp_path: Path) -> None:
    # files of Qwen3 do not say how wide heads are to transformers, all of them have 128
    size = {"hidden_size": 256, "intermediate_size": 256, "tie_word_embeddings": True}
    heads = {"head_dim": 128, "num_attention_heads": 2} if family == "qwen3" else {"head_dim": 64}
    original = make_tiny_model(tmp_path / "original", family, 300, **size | heads)
    kinds: dict[str, str] = {}

    def kind_of(name: str) -> str:
        return kinds.setdefault(name, TYPES[len(kinds) % len(TYPES)])

    (tmp_path / "folder").mkdir()
    convert_gguf(write_gguf(original, tmp_path / "mixed.gguf", kind_of), tmp_path / "folder")
    found = []
    for weights in ("auto", "dtype"):
        settings = EngineSettings("cpu", "bfloat16", weights, block_size=16, kv_blocks=100, threads=2)
        engine = Engine.load(tmp_path / "folder", settings)
        if weights == "auto":
            assert sum(engine.decoder.as_stored.values()) > 0
        together = Driver(engine, max_batch=3).run(jobs())
        alone = [Driver(engine).run([job])[0] for job in jobs()]
        assert [job.logprobs for job in alone] == [job.logprobs for job in together]
        found.append([(job.output, job.logprobs) for job in alone])
    assert found[0] == found[1]
