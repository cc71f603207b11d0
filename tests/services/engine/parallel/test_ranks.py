"""Several processes give the tokens of one, and none of them reads the whole model."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import Driver, Job
from family_check import check_greedy, make_jobs
from marked import full
from owners import Owners
from perplexity import perplexity, text_ids
from rank_processes import RankProcesses, counted_bytes
from safetensors.torch import load_file, save_file
from test_engine import seeded_jobs
from test_prompt_logprobs import check as check_scores
from test_prompt_logprobs import make_jobs as scored_jobs
from tiny_models import make_tiny_model

from services.engine.batch.block_names import common
from services.engine.engine import Engine
from services.engine.families.config import load_config
from services.engine.settings import EngineSettings
from services.errors import SettingsError
from services.messages import Claim, Iteration, NewRequest
from services.requests import SamplingParams
from services.scheduling import Knobs, Scheduler
from services.scheduling.drafting import Drafting

LAYOUTS = [(2, 1), (1, 2), (2, 2)]
EVEN_SHARE = 1.25  # norms, and biases of sums, are not split


def settings(tp: int, pp: int) -> EngineSettings:
    return EngineSettings("cpu", "float32", block_size=4, kv_blocks=200, threads=1, tp=tp, pp=pp)


EIGHT_BITS = replace(settings(2, 1), weights="int8", kv_cache_dtype="int8_per_token_head")


THREE = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72, "head_dim": 8}
UNEVEN: dict[str, tuple[str, dict[str, Any], tuple[int, int]]] = {
    "three KV heads and layers": ("qwen3", {**THREE, "num_hidden_layers": 3}, (2, 2)),
    "fused products, partial rotary embeddings": ("phi3", {**THREE, "head_dim": 8, "intermediate_size": 129}, (2, 1)),
    "fused products, partial interleaved embeddings, four norms": ("glm4", {**THREE, "intermediate_size": 129}, (2, 1)),
    "three heads with sinks": ("gpt_oss", {**THREE, "intermediate_size": 44}, (3, 1)),
    "attention beside the MLP": (
        "cohere2",
        {**THREE, "intermediate_size": 129, "num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 3},
        (2, 2),
    ),
    "a shared expert": (
        "qwen2_moe",
        {**THREE, "moe_intermediate_size": 44, "shared_expert_intermediate_size": 129, "mlp_only_layers": [0]},
        (2, 2),
    ),
    "corrected experts": ("ernie4_5_moe", {**THREE, "moe_intermediate_size": 44, "intermediate_size": 129}, (2, 2)),
    "norms behind, three heads with windows": (
        "exaone4",
        {**THREE, "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        (2, 2),
    ),
    "layers that attend to the keys of others, with inputs": ("gemma4_text", {"intermediate_size": 130}, (2, 1)),
    "keys as values, other heads in some layers": (
        "gemma4_unified_text",
        {
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "num_attention_heads": 15,
            "num_key_value_heads": 5,
            "num_global_key_value_heads": 3,
        },
        (2, 2),
    ),
    "five heads": ("gpt2", {"n_embd": 60, "n_head": 5, "n_inner": 131, "n_layer": 3}, (3, 1)),
}


def cases() -> Iterator[Any]:
    """One family in each layout, another in the last, which has both kinds of ranks. `make test-all` has all."""
    for family in ("llama", "qwen3", "qwen3_moe", "gpt_oss", "gemma3_text", "granite", "gpt2"):
        for tp, pp in LAYOUTS:
            by_default = family == "llama" or ((tp, pp) == LAYOUTS[-1] and family == "gemma3_text")
            marks = () if by_default else pytest.mark.full
            yield pytest.param((family, tp, pp), id=f"{family}-tp{tp}-pp{pp}", marks=marks)


@pytest.fixture(scope="module", params=cases())
def case(request: pytest.FixtureRequest) -> tuple[str, int, int]:
    chosen: tuple[str, int, int] = request.param
    return chosen


@pytest.fixture(scope="module")
def folder(case: tuple[str, int, int], tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model(case[0])


@pytest.fixture(scope="module")
def ranks(folder: Path, case: tuple[str, int, int]) -> Iterator[RankProcesses]:
    with ExitStack() as stack:
        yield stack.enter_context(RankProcesses(folder, settings(*case[1:])))


@pytest.fixture
def alone(folder: Path) -> Engine:
    return Engine.load(folder, settings(1, 1))


def test_tokens_are_those_of_one_process(ranks: RankProcesses, folder: Path, alone: Engine) -> None:
    """In arrival order, then in random order, batches and chunks, over scattered blocks; greedy and drawn together."""
    greedy = Driver(alone).run(make_jobs(random.Random(7)))
    check_greedy(folder, greedy)
    expected = [job.output for job in [*greedy, *Driver(alone).run(seeded_jobs())]]
    for rng in (None, random.Random(1)):
        jobs = [*make_jobs(random.Random(7)), *seeded_jobs()]
        assert [job.output for job in Driver(ranks, rng, max_batch=8).run(jobs)] == expected
    tp, pp = ranks.layout.tp, ranks.layout.pp
    assert ranks.figures.numerics == f"{alone.figures.numerics} tp{tp} pp{pp}"


def test_prompts_are_scored_as_by_transformers(ranks: RankProcesses, folder: Path) -> None:
    """Together and in random chunks; each way the same bits."""
    together, chunks = (Driver(ranks, rng, max_batch=9).run(scored_jobs()) for rng in (None, random.Random(3)))
    check_scores(together, folder)
    assert [job.logprobs for job in chunks] == [job.logprobs for job in together]


def test_no_process_reads_the_whole_model(ranks: RankProcesses, folder: Path) -> None:
    if ranks.layout.tp > 1 and load_config(folder).model_type == "gpt_oss":
        pytest.skip("experts of one tensor are read whole")
    with counted_bytes() as read:
        Engine.load(folder, settings(1, 1))
    whole = sum(read)
    assert max(ranks.read) <= EVEN_SHARE * whole / ranks.layout.size
    assert sum(ranks.read) >= whole


REPEATED = [
    "fused products, partial interleaved embeddings, four norms",
    "corrected experts",
    "norms behind, three heads with windows",
]


@pytest.mark.parametrize("variant", [*(name for name in UNEVEN if name not in REPEATED), *full(REPEATED)])
def test_nothing_need_divide(variant: str, tmp_path: Path) -> None:
    family, changes, layout = UNEVEN[variant]
    folder = make_tiny_model(tmp_path, family, 203, with_tokenizer=False, **changes)
    with RankProcesses(folder, settings(*layout)) as ranks:
        for rng in (None, random.Random(1)):
            check_greedy(folder, Driver(ranks, rng).run(make_jobs(random.Random(7))))


def test_uneven_ranks_of_one_machine_have_the_blocks_of_one_process(tmp_path: Path) -> None:
    """One of two ranks has one KV head of three, so its blocks need a third of the memory."""
    folder = make_tiny_model(tmp_path, "llama", 203, with_tokenizer=False, **THREE, intermediate_size=129)
    two = replace(settings(2, 1), kv_blocks=0, kv_memory_fraction=0.001)
    engines = [Engine.load(folder, two, 0), Engine.load(folder, two, 1), Engine.load(folder, replace(two, tp=1))]
    counts = [engine.figures.num_blocks for engine in engines]
    assert max(counts) <= 1.3 * min(counts)  # the free memory changes meanwhile


def test_the_default_model_runs_on_two_ranks(default_model: Path) -> None:
    """It has three KV heads."""
    jobs = [make_jobs(random.Random(7), count=4) for _ in range(2)]
    Driver(Engine.load(default_model, settings(1, 1))).run(jobs[0])
    with RankProcesses(default_model, settings(2, 1)) as ranks:
        Driver(ranks).run(jobs[1])
    assert [job.output for job in jobs[0]] == [job.output for job in jobs[1]]


def test_eight_bits_have_a_scale_for_each_shard(default_model: Path) -> None:
    """Of weights; keys and values in eight bits too. Numbers differ from those of one process, but are as good."""
    ids = text_ids(default_model)[:400]
    exact = perplexity(Engine.load(default_model, settings(1, 1)), ids)
    assert exact is not None
    with RankProcesses(default_model, EIGHT_BITS) as ranks:
        assert ranks.figures.numerics.endswith("kv-int8_per_token_head cpu native int8 tp2 pp1")
        assert ranks.perplexity(ids) == pytest.approx(exact, rel=0.01)


def test_shards_in_eight_bits_are_the_same_every_time(tiny_model: Callable[[str], Path]) -> None:
    """In new processes, in arrival order, then in random order, batches and chunks."""
    outputs = []
    for rng in (None, random.Random(1)):
        with RankProcesses(tiny_model("llama"), EIGHT_BITS) as ranks:
            outputs.append([job.output for job in Driver(ranks, rng).run(make_jobs(random.Random(7)))])
    assert outputs[0] == outputs[1]


def test_keys_and_values_in_eight_bits_do_not_depend_on_the_layout(tiny_model: Callable[[str], Path]) -> None:
    """A scale is that of one head, which is on one rank. In arrival order, then in random order, batches and chunks."""
    folder, short = tiny_model("llama"), replace(settings(2, 2), kv_cache_dtype="int8_per_token_head")
    alone = Driver(Engine.load(folder, replace(short, tp=1, pp=1))).run(make_jobs(random.Random(7)))
    with RankProcesses(folder, short) as ranks:
        for rng in (None, random.Random(1)):
            jobs = Driver(ranks, rng).run(make_jobs(random.Random(7)))
            assert [job.output for job in jobs] == [job.output for job in alone]


def test_undefined_values_stay_with_their_request(tmp_path: Path) -> None:
    """A request with a token whose embedding is NaN fails alone, and its blocks harm no later request, on any rank."""
    folder = make_tiny_model(tmp_path, vocab_size=64, with_tokenizer=False)
    good = [[5, 6, 7], [8, 9, 10, 11, 12], [5] * 200]
    whole = shutil.copytree(folder, tmp_path / "whole")
    sampling = SamplingParams(max_new_tokens=12, temperature=0.0)
    jobs = [Job(f"g{i}/0", prompt, sampling) for i, prompt in enumerate(good)]
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][40] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    asking = replace(
        sampling, logprobs=0, prompt_logprobs=0
    )  # then a value that is not finite is seen before a token is drawn
    bad = [Job(f"b{i}/0", [3, 40, 4, 4, 4][: i + 2], asking if i % 2 else sampling) for i in range(4)]
    with RankProcesses(folder, replace(settings(2, 2), kv_blocks=54)) as ranks:
        driver = Driver(ranks, random.Random(1), max_batch=3)
        driver.run([*jobs[:1], *bad])
        driver.run(jobs[1:2])
        driver.run(jobs[2:])  # in nearly all blocks
    assert all("not finite" in (job.failed or "") for job in bad)
    check_greedy(whole, jobs)


def test_each_stage_has_an_iteration_of_its_own(
    ranks: RankProcesses, alone: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paper's figure 8: as many iterations in flight as stages, under the real scheduler. Some have drafts."""
    jobs, deepest = make_jobs(random.Random(8), count=12), 0
    expected = [job.output for job in Driver(alone).run(make_jobs(random.Random(8), count=12))]
    ranks.reset("e")
    stages = ranks.layout.pp
    answers = {tuple(job.prompt): output for job, output in zip(jobs, expected, strict=True)}
    monkeypatch.setattr(Drafting, "find", lambda self, most: _guess(answers, self, most))
    knobs = Knobs(max_batch_size=3, token_budget=16, batches_in_flight=stages, num_speculative_tokens=3)
    scheduler = Scheduler(epoch="e", figures=ranks.figures, knobs=knobs)
    scheduler.add([Claim(job.id, float(i), job.prompt, [], job.sampling) for i, job in enumerate(jobs)])
    by_id, flights, ended, drafts = {job.id: job for job in jobs}, 0, 0, 0
    while ended < len(jobs):
        while iteration := scheduler.select():
            drafts += len(iteration.drafts)
            ranks.start(iteration)
            flights += 1
        deepest = max(deepest, flights)
        scheduler.update(ranks.result())
        flights -= 1
        for commit in scheduler.take_commits():
            by_id[commit.id].output += commit.tokens
            ended += commit.end is not None
    assert [job.output for job in jobs] == expected
    assert deepest == stages
    assert drafts


def _guess(answers: dict[tuple[int, ...], list[int]], drafting: Drafting, most: int) -> list[int]:
    """The next tokens of the answer, the third of which is wrong."""
    rest = answers[tuple(drafting._text._prompt)][len(drafting._output) :][:most]
    return [*rest[:2], *(token + 1 for token in rest[2:3])]


def test_a_new_owner_is_not_disturbed_by_what_the_last_one_left(ranks: RankProcesses, folder: Path) -> None:
    """The last owner died after it sent an iteration to one rank and not to the others."""
    jobs = make_jobs(random.Random(9), count=3)
    Driver(ranks)
    job = Job("left/0", [5, 6, 7], jobs[0].sampling)
    new = NewRequest(job.id, job.prompt, len(job.prompt), job.sampling)
    iteration = Iteration("e", 1, {job.id: len(job.prompt)}, [new], {job.id: [0]})
    told = ranks.layout.sampler  # it waits for the stage before, or for a rank of its stage
    ranks.one(told, "run", iteration)
    for rank in range(ranks.layout.size):
        ranks.one(rank, "link", "f")
    with pytest.raises(RuntimeError):
        ranks.answer(told)
    for rank in range(ranks.layout.size):
        ranks.answer(rank)
    check_greedy(folder, Driver(ranks).run(jobs))


def test_each_owner_continues_with_the_blocks_that_all_ranks_have(ranks: RankProcesses, alone: Engine) -> None:
    jobs = seeded_jobs()[:3]
    claims = [Claim(job.id, float(i), job.prompt, [], job.sampling) for i, job in enumerate(jobs)]
    expected = [job.output for job in Driver(alone).run(jobs)]
    owners = Owners(ranks, lambda: common(ranks.all("__getattribute__", "block_names")), claims)
    for epoch, iterations in enumerate([3, 4, 20], 1):
        owners.own(f"{epoch}:a", iterations)
    assert [owners.outputs[claim.id] for claim in claims] == expected
    assert max(max(again.values()) for again in owners.recomputed[1:]) <= 4


@pytest.mark.parametrize(
    ("tp", "pp", "named"),
    [(3, 1, "tp=3 is over the model's 2 KV heads"), (1, 3, "pp=3 is over the model's 2 layers")],
)
def test_what_cannot_be_split_is_refused(tp: int, pp: int, named: str, tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(SettingsError, match=named):
        Engine.load(tiny_model("llama"), settings(tp, pp))


def test_keys_of_another_stage_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "gemma4_text", with_tokenizer=False, hidden_size_per_layer_input=0)
    with pytest.raises(SettingsError, match="pp=2: layer 2 of the model attends to the keys of layer 0, in another"):
        Engine.load(folder, settings(1, 2))


def test_inputs_of_layers_are_refused_in_stages(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(SettingsError, match="pp=2: all layers of the model get numbers of each token"):
        Engine.load(tiny_model("gemma4_text"), settings(1, 2))


def test_norms_of_all_heads_are_not_split(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(SettingsError, match="tp=2: the model's norms of queries and keys run over all heads"):
        Engine.load(tiny_model("olmo2"), settings(2, 1))


def test_ranks_are_for_the_fast_path(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(SettingsError, match="tp=2, pp=1: ranks are served on the fast path only, which opt0 is"):
        Engine.load(tiny_model("opt"), settings(2, 1))
