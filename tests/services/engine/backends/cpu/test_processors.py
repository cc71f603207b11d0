"""The kernels compiled for older processors than this one."""

from __future__ import annotations

import platform
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from compiled_search import check_draws
from driver import Driver
from family_check import check_greedy, make_jobs
from test_families import FAST
from test_invariance import MODELS, SETTINGS, VOCAB, check
from tiny_models import make_tiny_model

from services.engine.backends.cpu import build
from services.engine.engine import Engine
from services.engine.sampling.search import CompiledSearch
from services.engine.settings import EngineSettings


@pytest.mark.chaos
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the processors are x86-64's")
@pytest.mark.parametrize("processor", ["haswell", "x86-64", *build.TARGETS])  # vectors of 8 and of 4 numbers
def test_tokens_are_right_on(
    processor: str, tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if processor in build.TARGETS:  # as in a container image, which has no compiler
        if not set(build._features().split()).issuperset(build.TARGETS[processor][1].split()):
            pytest.skip(f"no {processor} here")
        build.prebuild([processor], folder=tmp_path)
        monkeypatch.setattr(build, "PREBUILT", tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setattr(build, "FLAGS", compiled_for(processor))
    settings = EngineSettings("cpu", "float32", cache_dir=tmp_path, block_size=4, kv_blocks=200, threads=2)
    for family in FAST:
        engine = Engine.load(tiny_model(family), settings)
        jobs = Driver(engine, random.Random(1)).run(make_jobs(random.Random(7)))
        check_greedy(tiny_model(family), jobs)
    check_draws(CompiledSearch(build.kernels(tmp_path), 2))
    assert len(list(tmp_path.rglob("*.so"))) == 1


@pytest.mark.chaos
@pytest.mark.skipif("avx512_bf16" not in build._features(), reason="no AVX512_BF16")
def test_bits_do_not_depend_on_the_batch_with_vectors_of_pairs(
    tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on processors that have AVX512_BF16 but no AMX."""
    monkeypatch.setattr(build, "FLAGS", compiled_for("cooperlake"))
    folder = make_tiny_model(tmp_path / "model", "qwen3", VOCAB, with_tokenizer=False, **MODELS["qwen3"])
    settings = replace(SETTINGS, dtype="bfloat16", cache_dir=tmp_path)
    engine = Engine.load(folder, settings)
    assert engine.figures.numerics.endswith("native avx512_bf16")
    check(engine, folder, settings, random.Random(1))


def compiled_for(processor: str) -> list[str]:
    return [f"-march={processor}" if flag.startswith("-march") else flag for flag in build.FLAGS]
