"""Requests with LoRA adapters, and without, in one batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from driver import Driver, Job
from family_check import make_jobs
from hypothesis import given, settings
from hypothesis import strategies as st
from peft_adapters import find_linears, keep, likeliest_with, make_adapter
from rank_processes import RankProcesses
from tiny_families import make_tiny_family
from tiny_models import make_tiny_model

from services.adapters.peft import WEIGHTS
from services.adapters.store import folder_of
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.requests import SamplingParams

FLOAT32 = EngineSettings("cpu", "float32", block_size=4, kv_blocks=256, threads=1)
# joined and separate products, weights [inputs, outputs], no gates, parallel halves, norms behind, interleaved pairs,
# layers without keys, shared experts, sinks
FAMILIES = ["llama", "qwen3", "phi3", "gpt2", "arcee", "cohere2", "olmo2", "glm4", "gemma3_text"]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
TARGETS = {
    "gemma4_text": [*ATTENTION, "gate_proj", "up_proj", "down_proj"],
    "qwen2_moe": [*ATTENTION, "shared_expert.gate_proj", "shared_expert.down_proj"],
    "gpt_oss": ATTENTION,
}
A, B, C = "a" * 64, "b" * 64, "c" * 64  # digests
PATTERNS = {"rank_pattern": {"q_proj": 2, "layers.1.self_attn.o_proj": 40}, "alpha_pattern": {"q_proj": 5}}


def with_adapters(jobs: list[Job], digests: list[str]) -> list[Job]:
    for i, job in enumerate(jobs):
        job.sampling = replace(job.sampling, adapter=digests[i % len(digests)])
    return jobs


def two_adapters(model: Path, folder: Path, targets: str | list[str] = "all-linear") -> dict[str, Path]:
    """Adapters by digest, which engines find in `folder`."""
    found = {
        A: make_adapter(model, folder / "a", 1, target_modules=targets),
        B: make_adapter(model, folder / "b", 2, target_modules=targets, r=20, use_rslora=True, **PATTERNS),
    }
    for digest, adapter in found.items():
        keep(adapter, folder, digest)
    find_linears(model, FLOAT32.cache_dir)
    return found


@pytest.mark.parametrize(
    ("family", "fast_path"),
    [
        *((family, True) for family in [*FAMILIES, *TARGETS]),
        *((family, False) for family in ("llama", "gpt2", "gemma4_text")),
    ],
)
def test_tokens_equal_those_of_peft(
    tiny_model: Callable[[str], Path], tmp_path: Path, family: str, fast_path: bool
) -> None:
    folder = tiny_model(family)
    adapters = two_adapters(folder, tmp_path, TARGETS.get(family, "all-linear"))
    engine = Engine.load(folder, replace(FLOAT32, adapters=tmp_path, fast_path=fast_path))
    assert (" native" in engine.figures.numerics) == fast_path
    jobs = with_adapters(make_jobs(random.Random(7), 9), ["", A, B])
    Driver(engine, random.Random(1), 6).run(jobs)
    assert [job.output for job in jobs] == likeliest_with(folder, adapters, jobs)
    plain = likeliest_with(folder, {}, with_adapters(jobs, [""]))
    assert all(job.output != other for i, (job, other) in enumerate(zip(jobs, plain, strict=True)) if i % 3)


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("gpt_neox", ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]),
        ("deepseek_v3", ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"]),
        ("lfm2", ["self_attn.q_proj", "self_attn.out_proj", "feed_forward.w1", "feed_forward.w2"]),
    ],
)
def test_tokens_of_other_families_equal_those_of_peft(tmp_path: Path, family: str, targets: list[str]) -> None:
    folder = make_tiny_family(tmp_path / "m", family)
    adapters = two_adapters(folder, tmp_path, targets)
    engine = Engine.load(folder, replace(FLOAT32, adapters=tmp_path))
    jobs = with_adapters(make_jobs(random.Random(7), 6), ["", A, B])
    Driver(engine, random.Random(1), 6).run(jobs)
    assert [job.output for job in jobs] == likeliest_with(folder, adapters, jobs)


@pytest.mark.parametrize(
    ("family", "changed", "refused"),
    [
        ("llama4_text", "layers.1.self_attn.o_proj", "layers.1.feed_forward.router"),
        ("deepseek_v3", "layers.1.self_attn.o_proj", "layers.1.self_attn.kv_b_proj"),
        ("qwen2_moe", "layers.1.mlp.shared_expert.down_proj", "layers.1.mlp.shared_expert_gate"),
        ("lfm2", "layers.0.feed_forward.w1", "layers.0.conv.in_proj"),
        ("qwen3_next", "layers.0.mlp.shared_expert.up_proj", "layers.0.linear_attn.out_proj"),
    ],
)
def test_linear_layers_that_adapters_may_not_change_say_why(
    tmp_path: Path, family: str, changed: str, refused: str
) -> None:
    linears = find_linears(make_tiny_family(tmp_path / "m", family), tmp_path)
    assert not changed or not linears[f"model.{changed}"].obstacle
    assert linears[f"model.{refused}"].obstacle
    assert "logits" in linears["lm_head"].obstacle


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)])
def test_ranks_share_an_adapter(tiny_model: Callable[[str], Path], tmp_path: Path, tp: int, pp: int) -> None:
    folder = tiny_model("llama")
    adapters = two_adapters(folder, tmp_path)
    jobs = with_adapters(make_jobs(random.Random(7), 6), ["", A, B])
    lacking = Job("lacking", [1, 2, 3], SamplingParams(3, adapter=C))
    with RankProcesses(folder, replace(FLOAT32, adapters=tmp_path, tp=tp, pp=pp)) as ranks:
        Driver(ranks, random.Random(1)).run([*jobs, lacking])
    assert [job.output for job in jobs] == likeliest_with(folder, adapters, jobs)
    assert lacking.failed


# --- bits ---

ODD = {"hidden_size": 72, "intermediate_size": 100, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 40}
KINDS = {
    "float32": FLOAT32,
    "bfloat16": replace(FLOAT32, dtype="bfloat16"),
    "int8": replace(FLOAT32, dtype="bfloat16", weights="int8"),
}


@pytest.fixture(scope="module", params=KINDS)
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Engine]:
    """An engine, and one with other blocks and more threads."""
    folder = tmp_path_factory.mktemp("bits")
    model = make_tiny_model(folder / "m", "qwen3", 201, with_tokenizer=False, max_position_embeddings=280, **ODD)
    two_adapters(model, folder)
    own = replace(KINDS[request.param], adapters=folder, adapter_bytes=1)
    return Engine.load(model, own), Engine.load(model, replace(own, block_size=5, kv_blocks=400, threads=3))


@settings(max_examples=6)
@given(seed=st.integers(0, 2**32), digests=st.lists(st.sampled_from(["", A, B]), min_size=6, max_size=6))
def test_bits_do_not_depend_on_other_adapters(engines: tuple[Engine, Engine], seed: int, digests: list[str]) -> None:
    """Alone; in random batches and chunks, with guesses of which some are right, and interrupted; and continued by
    another engine, with many rows of one adapter at once."""
    engine, other = engines

    def jobs() -> list[Job]:
        drawn = random.Random(seed)
        prompts = [[drawn.randrange(201) for _ in range(drawn.choice([3, 20, 60, 150]))] for _ in digests]
        sampling = SamplingParams(12, temperature=0.0, logprobs=3)
        return with_adapters([Job(f"r{i}/0", prompt, sampling) for i, prompt in enumerate(prompts)], digests)

    alone = {job.id: Driver(engine).run([job])[0] for job in jobs()}

    def guesses(job: Job) -> list[int]:
        rest = alone[job.id].output[len(job.output) :]
        return [token if rng.random() < 0.7 else 1 for token in rest[: rng.randint(0, 4)]]

    rng, together = random.Random(seed), jobs()
    driver = Driver(engine, rng, max_batch=6, drafts=guesses)
    for _ in range(10):
        if ready := [job for job in together if not job.done]:
            driver.iterate(ready)
    for job in together:
        if job.sent and rng.random() < 0.5:
            driver.release(job)
    continued = [replace(job, sent=False, computed=0, blocks=[], output=list(job.output)) for job in together]
    continued = [replace(job, logprobs=list(job.logprobs)) for job in continued]
    Driver(other, max_batch=6).run(continued)
    for job in (*driver.run(together), *continued):
        assert (job.output, job.logprobs) == (alone[job.id].output, alone[job.id].logprobs)


# --- what engines keep ---


def test_a_request_whose_adapter_is_broken_ends_alone(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tiny_model("llama")
    adapters = two_adapters(folder, tmp_path)
    keep(adapters[A], tmp_path, C)
    (folder_of(tmp_path, C) / WEIGHTS).write_bytes(b"torn")
    engine = Engine.load(folder, replace(FLOAT32, adapters=tmp_path))
    jobs = with_adapters([Job(f"r{i}/0", [3, 4, 5 + i], SamplingParams(4)) for i in range(8)], ["", A, C, "d" * 64])
    Driver(engine, max_batch=8).run(jobs)
    assert [bool(job.failed) for job in jobs] == [False, False, True, True] * 2
    assert "is broken" in str(jobs[2].failed)
    assert "there is no folder" in str(jobs[3].failed)
    assert "d" * 12 in str(jobs[3].failed)


def test_only_engines_with_adapters_say_so(llama: Engine, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    assert "adapter" not in llama.figures.features
    assert "adapter" in Engine.load(tiny_model("llama"), replace(FLOAT32, adapters=tmp_path)).figures.features
