"""What an engine promises beyond the right tokens: epochs, isolation, chunks, recomputation, figures."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from driver import Driver, Job
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_model

from services.engine.adapters import Adapter, Adapters, LowRankLayer
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.engine.startup import huge_pages
from services.engine.startup.shared_memory import SharedMemory
from services.errors import StaleEpoch
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
SEEDED: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.5},
    {"temperature": 1.2, "top_k": 30, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    {"temperature": 1.0, "min_p": 0.05, "logit_bias": {7: 2.0}, "min_tokens": 6},
    {"temperature": 1.0, "bad_words": tuple((a, b) for a in range(200) for b in range(a % 3, 200, 3)), "top_k": 20},
    {"temperature": 1.5, "allowed_token_ids": tuple(range(5, 200, 6)), "presence_penalty": 1.0},
]


def seeded_jobs() -> list[Job]:
    rng = random.Random(3)
    return [
        Job(
            id=f"s{i}/0",
            prompt=[rng.randrange(200) for _ in range(rng.randint(1, 30))],
            sampling=SamplingParams(
                max_new_tokens=12, seed=rng.getrandbits(64), choice=i % 2, **SEEDED[i % len(SEEDED)]
            ),
        )
        for i in range(8)
    ]


def alone(engine: Engine, jobs: list[Job]) -> list[list[int]]:
    """The outputs of each job with nothing else on the engine."""
    return [Driver(engine).run([job])[0].output for job in jobs]


def test_seeded_tokens_are_the_same_in_batches_interrupted_and_elsewhere(
    llama: Engine, tiny_model: Callable[[str], Path]
) -> None:
    """Released at any moment and sent again with their tokens, penalties and seeds included; or after a crash to a new
    engine, under a new epoch."""
    expected = alone(llama, seeded_jobs())
    other = Engine.load(tiny_model("llama"), EngineSettings("cpu", "float32", block_size=7, kv_blocks=64, threads=1))
    for seed in range(3):
        rng = random.Random(seed)
        interrupted = Driver(llama, rng).run_interrupted(seeded_jobs(), 0.2)
        continued = Driver(other, rng).run(Driver(llama, rng).crash(seeded_jobs(), 12))
        assert [job.output for job in interrupted] == [job.output for job in continued] == expected
    assert len({token for output in expected for token in output}) > 20


def test_another_epoch_is_refused_and_changes_nothing(llama: Engine) -> None:
    job = Job("a/0", [5, 6, 7], GREEDY)
    driver = Driver(llama)
    driver.iterate([job])
    with pytest.raises(StaleEpoch, match="old"):
        llama.run(Iteration("old", 2, {"a/0": 1}, released=["a/0"]))
    driver.run([job])
    assert len(job.output) == 12
    llama.reset("new")
    with pytest.raises(StaleEpoch, match="'e'"):
        llama.run(Iteration("e", 9, {}))
    llama.run(Iteration("new", 1, {"a/0": 3}, [NewRequest("a/0", [5, 6, 7], 3, GREEDY)], {"a/0": [0]}))


def test_an_engine_runs_nothing_before_a_reset(tiny_model: Callable[[str], Path]) -> None:
    engine = Engine.load(tiny_model("llama"), EngineSettings("cpu", "float32", kv_blocks=4, threads=1))
    with pytest.raises(StaleEpoch):
        engine.run(Iteration("e", 1, {}))


def test_a_chunk_of_a_prompt_gives_no_token(llama: Engine) -> None:
    llama.reset("e")
    new = [NewRequest("a/0", [5, 6, 7, 8, 9], 5, GREEDY)]
    first = llama.run(Iteration("e", 1, {"a/0": 2}, new, {"a/0": [9, 3]}))
    assert (first.tokens, first.failed) == ({}, {})
    second = llama.run(Iteration("e", 2, {"a/0": 3}))
    assert list(second.tokens) == ["a/0"]
    assert second.elapsed > 0


def test_the_time_of_reading_an_adapter_is_not_that_of_an_iteration(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)

    def read(digest: str) -> Adapter:
        clock.now += 1000.0
        return Adapter({}, [LowRankLayer(None, None, None, None, frozenset())] * 99)

    engine = Engine.load(tiny_model("llama"), EngineSettings("cpu", "float32", kv_blocks=4, threads=1))
    assert engine.decoder.adapters
    engine._adapters = Adapters(engine.decoder.adapters, read, 0)
    monkeypatch.setattr("services.engine.engine.time", SimpleNamespace(perf_counter=lambda: clock.now))
    engine.reset("e")
    sampling = dataclasses.replace(GREEDY, adapter="digest")
    result = engine.run(Iteration("e", 1, {"a/0": 1}, [NewRequest("a/0", [5], 1, sampling)], {"a/0": [0]}))
    assert (clock.now, result.elapsed) == (1000.0, 0.0)
    assert list(result.tokens) == ["a/0"]


def test_an_iteration_may_only_release(llama: Engine) -> None:
    llama.reset("e")
    llama.run(Iteration("e", 1, {"a/0": 1}, [NewRequest("a/0", [5], 1, GREEDY)], {"a/0": [0]}))
    result = llama.run(Iteration("e", 2, {}, released=["a/0", "never seen"]))
    assert (result.tokens, result.failed) == ({}, {})


def test_a_request_without_room_is_the_schedulers_fault(llama: Engine) -> None:
    llama.reset("e")
    with pytest.raises(AssertionError, match="5 tokens in 1 blocks"):
        llama.run(Iteration("e", 1, {"a/0": 5}, [NewRequest("a/0", [5] * 5, 5, GREEDY)], {"a/0": [0]}))


@pytest.mark.parametrize("path", [{}, {"fast_path": False}, {"kv_cache_dtype": "int8_per_token_head"}])
def test_undefined_values_stay_with_their_request(tmp_path: Path, path: dict[str, Any]) -> None:
    """A request with a token whose embedding is NaN or infinite fails alone, and its blocks harm no later request."""
    folder = make_tiny_model(tmp_path, vocab_size=64, with_tokenizer=False)
    settings = EngineSettings("cpu", "float32", block_size=4, kv_blocks=16, threads=1, **path)
    good = [[5, 6, 7], [8, 9, 10, 11, 12]]
    expected = alone(Engine.load(folder, settings), [Job(f"g{i}/0", prompt, GREEDY) for i, prompt in enumerate(good)])
    weights = load_file(folder / "model.safetensors")
    assert "lm_head.weight" in weights  # if it were tied to the embedding, every request would fail
    weights["model.embed_tokens.weight"][40] = torch.nan
    weights["model.embed_tokens.weight"][41, 3] = torch.inf
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    engine = Engine.load(folder, settings)
    jobs = [Job(f"g{i}/0", prompt, GREEDY) for i, prompt in enumerate(good)]
    bad = [Job(f"b{i}/0", [3, 40 + i % 2, 4, 4, 4][: i + 2], GREEDY) for i in range(4)]
    driver = Driver(engine, random.Random(1), max_batch=3)
    driver.run([*jobs[:1], *bad])
    driver.run(jobs[1:])
    assert [job.output for job in jobs] == expected
    assert all("not finite" in (job.failed or "") for job in bad)
    whole = Job("all/0", [5] * 60, dataclasses.replace(GREEDY, max_new_tokens=2))
    assert driver.run([whole])[0].failed is None
    assert all(store.isfinite().all() for store in (*engine._cache.keys, *engine._cache.values))


def test_logprobs_come_with_the_tokens(llama: Engine) -> None:
    job = Job("a/0", [5, 6, 7], SamplingParams(max_new_tokens=4, temperature=0.0, logprobs=3))
    Driver(llama).run([job])
    assert [logprobs.top[0][0] for logprobs in job.logprobs] == job.output
    assert [logprobs.top[0][1] for logprobs in job.logprobs] == [logprobs.token for logprobs in job.logprobs]


@pytest.mark.parametrize(
    ("fast_path", "kept", "path"), [(True, torch.bfloat16, "native"), (False, torch.float32, "sdpa")]
)
def test_bfloat16(tiny_model: Callable[[str], Path], fast_path: bool, kept: torch.dtype, path: str) -> None:
    settings = EngineSettings("cpu", "bfloat16", fast_path=fast_path, block_size=4, kv_blocks=64, threads=1)
    engine = Engine.load(tiny_model("llama"), settings)
    jobs = Driver(engine, random.Random(0)).run(seeded_jobs())
    assert all(len(job.output) == 12 for job in jobs)
    assert engine._cache.keys[0].dtype == kept
    assert f" bfloat16 cpu {path}" in engine.figures.numerics


def test_figures(llama: Engine, tiny_model: Callable[[str], Path]) -> None:
    figures = llama.figures
    assert figures.model == tiny_model("llama").name
    assert (figures.max_model_len, figures.vocab_size) == (256, 200)
    assert (figures.num_blocks, figures.block_size, figures.num_slots) == (256, 4, 1024)
    assert figures.numerics.endswith(" float32 cpu native")


def test_blocks_come_from_the_memory_there_is(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 layers, 2 key heads of 16 and as many values, 4 bytes each: 512 bytes a token, 4,096 a block of 8."""
    monkeypatch.setattr("services.engine.startup.devices.free_bytes", lambda device: 4096 * 1000)
    settings = EngineSettings("cpu", "float32", block_size=8, kv_memory_fraction=0.25, threads=1)
    assert Engine.load(tiny_model("llama"), settings).figures.num_blocks == 250


@pytest.mark.parametrize("shared", [False, True])
def test_an_engine_that_sleeps_gives_back_its_kv_cache_and_computes_the_same(
    tiny_model: Callable[[str], Path], shared: bool
) -> None:
    if shared and not huge_pages.available():
        pytest.skip("this kernel gives shared memory no huge pages")
    settings = EngineSettings(device="cpu", dtype="float32", block_size=4, kv_blocks=8192, threads=1)
    engine = Engine.load(tiny_model("llama"), settings, memory=SharedMemory() if shared else None)
    expected = alone(engine, seeded_jobs())
    engine.reset("e")
    stores = [*engine._cache.keys, *engine._cache.values, *engine._cache.states]
    for store in stores:
        store.fill_(nan)
    engine._names.begin(Iteration("e", 1, {}, full_blocks={5: b"x"}))
    full = psutil.Process().memory_info().rss
    engine.run(Iteration("e", 2, {}, sleep=True))
    assert full - psutil.Process().memory_info().rss > 0.9 * sum(store.nbytes for store in stores)
    assert engine.block_names == {}
    assert alone(engine, seeded_jobs()) == expected
