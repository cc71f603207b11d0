"""Quantized folders whose weights run as they are stored: on several ranks, and taken over by a spare process."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from blocks_folder import keep_in_blocks
from driver import Driver
from family_check import check_greedy, make_jobs
from folders import quantize_folder
from marked import full
from rank_processes import RankProcesses
from test_engine import seeded_jobs
from tiny_models import make_tiny_model
from written import WRITERS

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.engine.startup import huge_pages
from services.engine.startup.shared_memory import SharedMemory
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams

SETTINGS = EngineSettings("cpu", "float32", block_size=4, kv_blocks=200, threads=1)
# two ranks get two heads and one, and 80 inner inputs each: their part ends within a group of 32
UNEVEN = {"hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 32}
PROMPT = list(range(5, 16))  # two full blocks and three tokens


@pytest.fixture(scope="module", params=["gptq", "compressed, 4 bits and zeros", "fp8, blocks", "gguf"])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Quantized, and the same numbers."""
    made = tmp_path_factory.mktemp("folders")
    size = {**UNEVEN, "intermediate_size": 160, "tie_word_embeddings": request.param == "gguf"}
    plain = make_tiny_model(made / "plain", "llama", with_tokenizer=False, **size)
    if request.param == "gguf":
        return plain, keep_in_blocks(plain)
    return quantize_folder(plain, made, *WRITERS[request.param])


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), *full([(1, 2)])])
def test_ranks_give_the_tokens_of_one_process(folders: tuple[Path, Path], tp: int, pp: int) -> None:
    quantized, numbers = folders
    drawn = [job.output for job in Driver(Engine.load(quantized, SETTINGS)).run(seeded_jobs())]
    with RankProcesses(quantized, replace(SETTINGS, tp=tp, pp=pp)) as ranks:
        for rng in (None, random.Random(1)):
            check_greedy(numbers, Driver(ranks, rng).run(make_jobs(random.Random(7))))
            assert [job.output for job in Driver(ranks, rng).run(seeded_jobs())] == drawn


@pytest.mark.skipif(not huge_pages.available(), reason="shared memory has no huge pages here")
@pytest.mark.parametrize("dtype", ["bfloat16", *full(["float32"])])
def test_a_spare_continues_on_the_weights_and_blocks_of_another(folders: tuple[Path, Path], dtype: str) -> None:
    settings = replace(SETTINGS, dtype=dtype, kv_blocks=16)
    first, second = SharedMemory("build"), SharedMemory("build")
    old = Engine.load(folders[0], settings, memory=first)
    second.hold(first.path)
    old.reset("1:a")
    request = NewRequest("a/0", PROMPT, len(PROMPT), SamplingParams(8, temperature=0.0), 0)
    expected = old.run(Iteration("1:a", 1, {"a/0": 11}, [request], {"a/0": [0, 1, 2]})).tokens
    old.run(Iteration("1:a", 2, {"a/0": 1}, full_blocks={0: b"x", 1: b"y"}))
    first.release()
    del old
    engine = Engine.load(folders[0], settings, memory=second)
    assert engine.block_names == {0: b"x", 1: b"y"}
    assert isinstance(engine.decoder, CpuDecoder)
    assert engine.decoder._packed.layers[0].down.groups is not None
    engine.reset("2:b")
    rest = Iteration("2:b", 1, {"a/0": 3}, [replace(request, num_computed_tokens=8)], {"a/0": [0, 1, 2]})
    assert engine.run(rest).tokens == expected
