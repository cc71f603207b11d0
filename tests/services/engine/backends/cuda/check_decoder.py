"""The whole decoder in Triton's interpreter, on the CPU and without graphs. Run by test_interpreted.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from driver import Driver, Job
from fake_driver import install
from family_check import check_greedy
from interpreted import BLOCKS, CPU, make, make_engine, make_setup
from test_prompt_logprobs import check as check_scores
from test_prompt_logprobs import make_jobs as scored_jobs
from test_running_ahead import Owner

from services.engine.backends.cuda.coded import CodedLinear
from services.engine.backends.cuda.decoder import CudaDecoder
from services.engine.backends.stock.loading import load_stock
from services.engine.batch.buffers import Allocate
from services.engine.batch.kv_cache import KVCache
from services.engine.decoder import Decoder
from services.engine.engine import Engine
from services.engine.families.config import load_config
from services.engine.families.registry import FAMILIES as FAST
from services.engine.parallel.layout import Layout, Partition, RowRange
from services.engine.sampling.sampler import Sampler
from services.engine.settings import NO_TOKEN
from services.engine.startup import rehearsal
from services.engine.startup.proof.trial import compare
from services.engine.startup.proof.verdict import BOUNDS
from services.engine.startup.rehearsal import rehearse
from services.engine.startup.shared_memory import SharedMemory
from services.engine.weights.quantized import GroupFormat, Values, Weight
from services.engine.weights.random_tensors import RandomTensors
from services.messages import Claim, EngineFigures
from services.requests import SamplingParams
from services.scheduling import Knobs


def make_jobs(**sampling: object) -> list[Job]:
    rng = random.Random(3)
    return [
        Job(f"r{i}/0", [rng.randrange(2, 199) for _ in range(length)], SamplingParams(new, **sampling))
        for i, (length, new) in enumerate([(1, 2), (18, 2)])
    ]


# together they have everything that a family can ask of a layer
FAMILIES = ["qwen3", "smollm3", "glm", "gpt2", "gemma2", "cohere2", "olmo3", "gpt_oss", "qwen2_moe"]
MORE = sorted({*FAST, *FAMILIES} - {*FAMILIES})


@pytest.mark.parametrize("family", [*FAMILIES, *(pytest.param(family, marks=pytest.mark.full) for family in MORE)])
def test_greedy_tokens_equal_generate(family: str, tiny_model: Callable[[str], Path]) -> None:
    """In random order, batches and chunks, over scattered blocks."""
    jobs = Driver(make_engine(tiny_model(family), 8), random.Random(1)).run(make_jobs(temperature=0.0))
    check_greedy(tiny_model(family), jobs)


class Widened(RandomTensors):
    """The same weights as numbers."""

    def weight(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> Weight:
        found = super().weight(name, rows, columns)
        return found if isinstance(found, torch.Tensor) else found.dequantize().to(self._dtype)


def quantized_names(tensors: RandomTensors, family: str) -> list[str]:
    """All products but routers, and those of experts one by one, as a checkpoint has them."""
    names = [name for name in tensors.names if tensors.rows(name) > 1 and "norm" not in name and "experts" not in name]
    experts = (f"model.layers.{i}.mlp.experts.{n}.{part}_proj" for i in range(2) for n in range(8) for part in PARTS)
    singles = [f"{name}.weight" for name in experts] if "moe" in family else []
    return [name for name in names if "mlp.gate." not in name] + singles


PARTS = ("gate", "up", "down")


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("llama", GroupFormat(4, 32)),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in (
                ("qwen3_moe", GroupFormat(4, 32)),
                ("llama", GroupFormat(8, 64)),
                ("llama", GroupFormat(8, 64, Values.E4M3)),
                ("llama", GroupFormat(4, 16, Values.E2M1)),
            )
        ),
    ],
)
def test_weights_as_stored_give_the_bits_of_the_widened_ones(
    family: str, form: GroupFormat, tiny_model: Callable[[str], Path]
) -> None:
    """Of all products but routers."""
    folder = tiny_model(family)
    config = load_config(folder)
    names = quantized_names(RandomTensors(config, torch.bfloat16, CPU), family)
    groups = {name: form._replace(size=40) if "experts" in name and "down" in name else form for name in names}
    found = []
    for kind in (RandomTensors, Widened):
        setup = make_setup(folder, Partition(), kind(config, torch.bfloat16, CPU, groups=groups))
        decoder = CudaDecoder(setup)
        stored = {name for name, as_stored in decoder.as_stored.items() if as_stored}
        assert stored == ({name for name in names if "embed" not in name} if kind is RandomTensors else set())
        jobs = Driver(make(decoder, setup.spec, 8)).run(make_jobs(temperature=0.0, logprobs=3))
        found.append(([(job.output, job.logprobs) for job in jobs], decoder.memory))
    assert found[0][0] == found[1][0]
    assert found[0][1] < found[1][1]


def test_biases_beside_codes_are_rounded_as_others(tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model("qwen2")
    found = []
    for kind in (RandomTensors, Widened):
        tensors = kind(load_config(folder), torch.float32, CPU)
        names = [name for name in quantized_names(tensors, "qwen2") if name.endswith("_proj.weight")]
        tensors.groups = dict.fromkeys(names, GroupFormat(4, 32))
        setup = replace(make_setup(folder, Partition(), tensors), dtype=torch.bfloat16)
        found.append([layer.weights.qkv for layer in CudaDecoder(setup).kernels._layers])
    for coded, widened in zip(*found, strict=True):
        assert isinstance(coded, CodedLinear)
        assert coded.bias is not None
        assert widened.bias is not None
        assert coded.bias.dtype == widened.bias.dtype
        assert torch.equal(coded.bias, widened.bias)


@pytest.mark.parametrize(
    ("family", "coded"),
    [("llama", True), *(pytest.param(other, False, marks=pytest.mark.full) for other in ("llama", "gpt_oss"))],
)
def test_a_decoder_in_memory_that_outlives_its_process(
    family: str, coded: bool, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrices and codes are made there; norms and the rest are copied."""
    devices = install(monkeypatch.setattr)[1]
    first, second = SharedMemory("build", devices), SharedMemory("build", devices)
    tensors = None
    if coded:
        tensors = RandomTensors(load_config(tiny_model(family)), torch.bfloat16, CPU)
        tensors.groups = dict.fromkeys(quantized_names(tensors, family), GroupFormat(4, 32))
    setup = make_setup(tiny_model(family), Partition(), tensors)

    def load(allocate: Allocate) -> Decoder:
        return CudaDecoder(replace(setup, allocate=allocate))

    def cache(decoder: Decoder, allocate: Allocate) -> KVCache:
        return KVCache(decoder.layers, BLOCKS, 8, torch.float32, CPU, 0, allocate)

    kept = first.fill("same", load, cache)
    assert second.hold(first.path)
    outputs = []
    for contents in (kept, second.restore("same")):
        assert contents
        decoder, kv = contents
        assert isinstance(decoder, CudaDecoder)
        decoder.bind(kv)
        decoder.kernels.load()
        figures = EngineFigures("tiny", 256, BLOCKS, 8, setup.spec.vocab, decoder.path)
        engine = Engine(decoder, kv, figures, Sampler(frozenset(), figures.vocab_size), NO_TOKEN)
        jobs = Driver(engine).run(make_jobs(temperature=0.0))
        outputs.append([job.output for job in jobs])
    assert outputs[0] == outputs[1]
    if not coded:
        check_greedy(tiny_model(family), jobs)
    assert contents.cache.keys[0].data_ptr() != kept.cache.keys[0].data_ptr()
    assert torch.equal(contents.cache.keys[0], kept.cache.keys[0])


@pytest.mark.parametrize(
    "family", ["gpt_oss", *(pytest.param(other, marks=pytest.mark.full) for other in ("llama", "gemma4_text"))]
)
def test_bits_depend_on_the_request_alone(family: str, tiny_model: Callable[[str], Path]) -> None:
    """Compares log probabilities, alone and in a batch, in chunks, with blocks of another size."""
    engine = make_engine(tiny_model(family), 16)
    alone = [Driver(engine).run([job])[0] for job in make_jobs(seed=1, logprobs=3)]
    other = make_engine(tiny_model(family), 8)
    again = Driver(other, random.Random(2)).run(make_jobs(seed=1, logprobs=3))
    assert [(job.output, job.logprobs) for job in again] == [(job.output, job.logprobs) for job in alone]


def test_keys_and_values_in_eight_bits_are_near_the_others(tiny_model: Callable[[str], Path]) -> None:
    """Log probabilities of a prompt are, and depend on the request alone."""
    folder = tiny_model("llama")
    setup = replace(make_setup(folder, Partition()), cache_dtype=torch.int8)
    exact = Driver(make_engine(folder, 8)).run(scored_jobs(longest=12)[:2])
    found = []
    for block_size, rng in ((8, None), (5, random.Random(2))):
        jobs = Driver(make(CudaDecoder(setup), setup.spec, block_size), rng).run(scored_jobs(longest=12)[:2])
        found.append([job.logprobs for job in jobs])
    assert found[0] == found[1]
    for short, job in zip(found[0], exact, strict=True):
        (ours, theirs) = (told[0].prompt for told in (short, job.logprobs))
        if theirs and theirs.tokens:
            assert ours
            assert ours.tokens != theirs.tokens
            assert ours.tokens == pytest.approx(theirs.tokens, abs=0.02)


def test_iterations_run_ahead_over_blocks_that_hold_anything(tiny_model: Callable[[str], Path]) -> None:
    """Nothing behind a request's last token is read, so blocks need not be erased."""
    engine = make_engine(tiny_model("llama"), 8)
    claims = [
        Claim(job.id, float(i), job.prompt, [], job.sampling)
        for i, job in enumerate(make_jobs(seed=1, logprobs=3, ignore_eos=True))
    ]
    found = []
    for knobs in (Knobs(1), Knobs(4, lookahead=1)):
        for store in (*engine._cache.keys, *engine._cache.values):
            store.fill_(torch.nan)
        owner = Owner(engine, claims, knobs, 32)
        owner.serve(claims)
        found.append({id: (served.tokens, served.logprobs) for id, served in owner.served.items()})
    assert owner.drawn
    assert found[0] == found[1]
    assert not engine.decoder.reads_past_end


@pytest.mark.parametrize("most_rank", [0, pytest.param(5, marks=pytest.mark.full)])
@pytest.mark.parametrize("rank", [None, 0, 1, 3])
def test_the_largest_iteration_runs_before_there_are_requests(
    rank: int | None, most_rank: int, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a cache of one block, with adapters too; on ranks, which are not linked yet, too."""
    for name, number in (("MOST_REQUESTS", 3), ("MOST_ROWS", 5), ("MOST_TOKENS", 20)):
        monkeypatch.setattr(rehearsal, name, number)
    layout = Layout() if rank is None else Layout(2, 2, rank)
    setup = replace(make_setup(tiny_model("llama"), layout.partition), most_rank=most_rank)
    decoder = CudaDecoder(setup, layout)
    cache = KVCache(decoder.layers, 1, 8, torch.float32, CPU)
    decoder.bind(cache)
    assert rehearse(decoder, 8, 30, 200, None, CPU) == 0
    assert bool(cache.keys[0][0].any()) == (rank != 1)  # whose part of the embedding lacks the token


@pytest.mark.parametrize(
    ("family", "chunks"),
    [("llama", True), *(pytest.param(*case, marks=pytest.mark.chaos) for case in [("llama", False), ("gpt2", True)])],
)
def test_prompts_are_scored_as_by_transformers(family: str, chunks: bool, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(family)
    rng = random.Random(1) if chunks else None
    check_scores(Driver(make_engine(folder, 8), rng, max_batch=9).run(scored_jobs(longest=20)[:4]), folder)


@pytest.mark.chaos
def test_the_bits_of_a_prompt_depend_on_the_request_alone(tiny_model: Callable[[str], Path]) -> None:
    engine = make_engine(tiny_model("llama"), 16)
    alone = [Driver(engine).run([job])[0] for job in scored_jobs(longest=20)]
    other = make_engine(tiny_model("llama"), 8)
    again = Driver(other, random.Random(2)).run(scored_jobs(longest=20))
    assert [job.logprobs for job in again] == [job.logprobs for job in alone]


@pytest.mark.chaos
def test_a_trial_finds_them_near_transformers(tiny_model: Callable[[str], Path]) -> None:
    """The iterations that check a GPU's kernels before they serve."""
    folder = tiny_model("qwen3")
    setup = make_setup(folder, Partition())
    stock = load_stock(folder, torch.float32, CPU, 100)
    with torch.inference_mode():
        difference = compare(CudaDecoder(setup), stock, 16, 100, setup.spec, CPU)
    assert difference <= BOUNDS[torch.float32] / 3
