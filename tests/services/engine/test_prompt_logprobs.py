"""Log probabilities of prompts are those of a plain forward of transformers, however the prompt is computed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from driver import Driver, Job
from marked import full
from safetensors.torch import load_file, save_file
from tiny_families import make_tiny_family
from tiny_models import make_tiny_model
from transformers import AutoModelForCausalLM

from services.engine.engine import Engine
from services.engine.families.registry import FAMILIES as FAST
from services.engine.sampling import prompt_logprobs
from services.engine.settings import EngineSettings
from services.messages import Claim, Iteration, Logprobs, NewRequest, PromptLogprobs
from services.requests import SamplingParams
from services.scheduling import Knobs, Scheduler

SETTINGS = EngineSettings("cpu", "float32", block_size=4, kv_blocks=300, threads=1)
TOLERANCE = 2e-5
MOST = 5


def make_jobs(vocab: int = 200, longest: int = 60) -> list[Job]:
    """Jobs that ask for different numbers of likeliest tokens, and jobs that do not ask."""
    rng = random.Random(5)
    asked = [0, MOST, 2, None, 1, None, MOST]
    lengths = [1, 2, longest, 30, longest - 7, 9, 40]
    return [
        Job(
            f"r{i}/0",
            [rng.randrange(2, vocab - 1) for _ in range(length)],
            SamplingParams(4, temperature=0.0, logprobs=None if count is None else 1, prompt_logprobs=count),
        )
        for i, (count, length) in enumerate(zip(asked, lengths, strict=True))
    ]


def told(job: Job) -> PromptLogprobs | None:
    """The prompt's log probabilities, which come with the first output token and no other."""
    if job.sampling.logprobs is None:
        assert job.logprobs == []
        return None
    first, *others = job.logprobs
    assert all(one.prompt is None for one in others)
    return first.prompt


def check(jobs: list[Job], folder: Path) -> None:
    """Compare with log_softmax of a plain forward of each prompt alone."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    for job in jobs:
        found, asked = told(job), job.sampling.prompt_logprobs
        if asked is None:
            assert found is None
            continue
        assert found is not None
        with torch.inference_mode():
            logs = model(torch.tensor([job.prompt])).logits[0, :-1].double().log_softmax(-1)
        follow = torch.tensor(job.prompt[1:], dtype=torch.long)
        own = logs.gather(1, follow[:, None])[:, 0]
        assert found.tokens == pytest.approx(own.tolist(), abs=TOLERANCE)
        nearly = (logs > own[:, None] + TOLERANCE).sum(-1), (logs > own[:, None] - TOLERANCE).sum(-1)
        assert all(low < rank <= high for low, rank, high in zip(nearly[0], found.ranks, nearly[1], strict=True))
        values, _ = logs.topk(asked)
        assert found.top_logprobs == pytest.approx(values.flatten().tolist(), abs=TOLERANCE)
        ids = torch.tensor(found.top_ids, dtype=torch.long).view(len(follow), asked)
        assert logs.gather(1, ids).flatten().tolist() == pytest.approx(found.top_logprobs, abs=TOLERANCE)
        assert all(len(set(row)) == asked for row in ids.tolist())


# heads that are tied, scaled or capped, with biases, behind experts
HEADS = ["llama", "gpt2", "granite", "gemma2", "cohere2", "gpt_oss"]


@pytest.mark.parametrize(
    ("family", "fast_path"),
    [(f, True) for f in HEADS]
    + [("llama", False), ("opt", False)]
    + full([(f, True) for f in FAST if f not in HEADS] + [(f, False) for f in ("gpt2", "gpt_neox", "stablelm")]),
)
def test_they_are_those_of_a_plain_forward(family: str, fast_path: bool, tiny_model: Callable[[str], Path]) -> None:
    """Each alone, all together, and in random batches and chunks."""
    folder = tiny_model(family)
    engine = Engine.load(folder, replace(SETTINGS, fast_path=fast_path))
    assert engine.figures.numerics.endswith("native") == fast_path
    check([Driver(engine).run([job])[0] for job in make_jobs()], folder)
    check(Driver(engine, max_batch=9).run(make_jobs()), folder)
    check(Driver(engine, random.Random(1)).run(make_jobs()), folder)


@pytest.mark.parametrize("family", ["llama4_text", "gemma4_text", "modernbert-decoder"])
def test_families_whose_head_asks_for_more(family: str, tmp_path: Path) -> None:
    """For positions, for as many ids as there are hidden states; or a part of the head is named as a decoder is."""
    make_tiny_family(tmp_path, family)
    engine = Engine.load(tmp_path, replace(SETTINGS, fast_path=False))
    check(Driver(engine, random.Random(1)).run(make_jobs()), tmp_path)


@pytest.mark.parametrize("fast_path", [True, False])
def test_the_size_of_a_piece_changes_nothing(
    fast_path: bool, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more logits than `AT_ONCE` are computed at once."""
    engine = Engine.load(tiny_model("llama"), replace(SETTINGS, fast_path=fast_path))
    expected = Driver(engine, max_batch=9).run(make_jobs())
    most = 7 * engine.figures.vocab_size
    monkeypatch.setattr(prompt_logprobs, "AT_ONCE", most)
    sizes: list[int] = []
    logits_after = engine.decoder.logits_after

    def recording(tokens: prompt_logprobs.Numbers) -> torch.Tensor | None:
        logits = logits_after(tokens)
        assert logits is not None
        sizes.append(logits.numel())
        return logits

    monkeypatch.setattr(engine.decoder, "logits_after", recording)
    again = Driver(engine, max_batch=9).run(make_jobs())
    assert max(sizes) == most
    assert [job.output for job in again] == [job.output for job in expected]
    if fast_path:
        assert [told(job) for job in again] == [told(job) for job in expected]
    else:
        check(again, tiny_model("llama"))


@pytest.mark.parametrize(
    ("dtype", "weights"), [("float32", "dtype"), ("bfloat16", "dtype"), ("float32", "int8"), ("bfloat16", "int8")]
)
def test_bits_depend_on_the_request_alone(dtype: str, weights: str, tmp_path: Path) -> None:
    """In any batch, chunks, blocks and threads; preempted; and equal to those of the same tokens when they were
    generated."""
    folder = make_tiny_model(tmp_path, "llama", 201, with_tokenizer=False, max_position_embeddings=280)
    settings = replace(SETTINGS, dtype=dtype, weights=weights)
    engine = Engine.load(folder, settings)
    other = Engine.load(folder, replace(settings, block_size=5, threads=3))
    alone = [Driver(engine).run([job])[0] for job in make_jobs(201, 250)]
    for seed in (1, 2):
        for again in (
            Driver(other, max_batch=9).run(make_jobs(201, 250)),
            Driver(engine, random.Random(seed)).run(make_jobs(201, 250)),
            Driver(engine, random.Random(seed)).run_interrupted(make_jobs(201, 250), 0.2),
        ):
            assert [job.logprobs for job in again] == [job.logprobs for job in alone]
    written = Driver(engine).run([Job("w/0", [5, 6, 7], SamplingParams(60, seed=3, logprobs=3))])[0]
    scored = Job("s/0", written.tokens, SamplingParams(1, logprobs=0, prompt_logprobs=3))
    found = told(Driver(other, random.Random(0)).run([scored])[0])
    assert found is not None
    assert found.tokens[2:] == [one.token for one in written.logprobs]
    top = list(zip(found.top_ids, found.top_logprobs, strict=True))
    assert [top[i : i + 3] for i in range(6, len(top), 3)] == [one.top for one in written.logprobs]


def test_a_prompt_behind_shared_blocks_is_left_alone(llama: Engine) -> None:
    """A neighbour shares its first blocks, which changes nothing for the request that is scored."""
    prompt = list(range(5, 17))
    asking = SamplingParams(1, temperature=0.0, logprobs=0, prompt_logprobs=0)
    alone = Driver(llama).run([Job("a/0", prompt, asking)])[0].logprobs[0]
    llama.reset("e")
    new = [NewRequest("a/0", prompt, 12, asking), NewRequest("b/0", prompt, 12, SamplingParams(1), 8)]
    blocks = {"a/0": [0, 1, 2], "b/0": [0, 1, 3]}
    result = llama.run(Iteration("e", 1, {"a/0": 12, "b/0": 4}, new, blocks))
    assert result.logprobs == {"a/0": alone}
    assert set(result.tokens) == {"a/0", "b/0"}


@pytest.mark.parametrize("fast_path", [True, False])
@pytest.mark.parametrize("rng", [None, random.Random(2)])
def test_a_prompt_whose_logits_are_not_finite_fails_alone(
    tmp_path: Path, fast_path: bool, rng: random.Random | None
) -> None:
    folder = make_tiny_model(tmp_path, vocab_size=64, with_tokenizer=False)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][40] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    asking = SamplingParams(2, temperature=0.0, logprobs=0, prompt_logprobs=1)
    jobs = [Job("bad/0", [3, 4, 40, *range(5, 30)], asking), Job("good/0", list(range(5, 35)), asking)]
    engine = Engine.load(folder, replace(SETTINGS, fast_path=fast_path))
    Driver(engine, rng).run(jobs)
    assert "not finite" in (jobs[0].failed or "")
    found = told(jobs[1])
    assert found is not None
    assert len(found.tokens) == 29


def test_logprobs_of_a_first_token_are_otherwise_unchanged(llama: Engine) -> None:
    asked = SamplingParams(3, temperature=0.0, logprobs=2)
    plain = Driver(llama).run([Job("a/0", [5, 6, 7], asked)])[0]
    both = Driver(llama).run([Job("a/0", [5, 6, 7], replace(asked, prompt_logprobs=0))])[0]
    assert both.output == plain.output
    assert [Logprobs(one.token, one.top) for one in both.logprobs] == plain.logprobs


@pytest.mark.parametrize("fast_path", [True, False])
def test_under_the_scheduler(fast_path: bool, tiny_model: Callable[[str], Path]) -> None:
    """In chunks under a budget, beside neighbours that share prefixes, preempted when blocks run out."""
    engine = Engine.load(tiny_model("llama"), replace(SETTINGS, fast_path=fast_path, kv_blocks=21))
    engine.reset("e")
    knobs = Knobs(4, token_budget=9, admission="on_demand", prefix_caching=True)
    scheduler = Scheduler(epoch="e", figures=engine.figures, knobs=knobs)
    jobs = make_jobs()
    start, plain = jobs[2].prompt, SamplingParams(4, temperature=0.0)
    jobs += [Job(f"n{i}/0", start[: 9 * i], plain) for i in range(1, 5)]
    long = replace(plain, max_new_tokens=30)
    jobs += [Job("again/0", start, jobs[2].sampling), Job("l0/0", [7] * 4, long), Job("l1/0", [8] * 4, long)]
    scheduler.add([Claim(job.id, -i, job.prompt, [], job.sampling) for i, job in enumerate(jobs)])
    by_id, counted = {job.id: job for job in jobs}, Counter[str]()
    while iteration := scheduler.select():
        counted.update(new.id for new in iteration.new)
        scheduler.update(engine.run(iteration))
        counted.update(scheduler.take_counters())
        for commit in scheduler.take_commits():
            assert commit.end is None or commit.end.error is None
            by_id[commit.id].output += commit.tokens
            by_id[commit.id].logprobs += commit.logprobs or []
    assert all(job.done for job in jobs)
    check(jobs, tiny_model("llama"))
    assert (counted["again/0"], counted["vllm:num_preemptions"]) == (2, 1)  # in the middle of its prompt
    assert counted["vllm:prefix_cache_hits"] > 0
