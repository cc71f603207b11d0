"""LoRA adapters in Triton's interpreter. Run by test_interpreted.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import interpreter  # noqa: F401
import numpy as np
import pytest
import torch
from driver import Driver, Job
from family_check import STOCK
from interpreted import CPU, make_engine, make_rank
from rank_processes import RankProcesses

from load.random_adapter import write_adapter
from services.adapters.store import folder_of
from services.engine.adapters import NO_CHANGE, Adapter, LowRankProduct
from services.engine.backends.cuda import products
from services.engine.backends.cuda.adapters import OUTPUT, QKV, CudaAdapters
from services.engine.backends.cuda.kernels.low_rank import Adapted, Added, add_low_rank
from services.engine.backends.cuda.kernels.product import ANCHOR, PLAIN, multiply
from services.engine.backends.cuda.products import Products
from services.engine.batch.flat_batch import AdaptedTokens
from services.engine.engine import Engine
from services.engine.families.decoder_weights import Linear
from services.engine.families.linears import keep_linears
from services.engine.settings import EngineSettings
from services.models.linears import kept_at, load_linears
from services.requests import SamplingParams

INPUTS, OUTPUTS = 530, 150  # the last part and the last tile are not full
A, B = "a" * 64, "b" * 64  # digests


def drawn(rank: int, seed: int) -> LowRankProduct:
    numbers = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(shape, generator=numbers) for shape in ((rank, INPUTS), (OUTPUTS, rank)))
    return LowRankProduct(a, b, torch.full((rank,), 0.5))


PRODUCTS = {A: drawn(5, 1), B: drawn(33, 2)}


@pytest.fixture
def adapters() -> CudaAdapters:
    """Two that change the second of two layers' products of queries, keys and values."""
    kept = CudaAdapters(40, CPU)
    for digest, product in PRODUCTS.items():
        kept.put(digest, Adapter({}, [NO_CHANGE, replace(NO_CHANGE, qkv=product)]))
    return kept


def adapted_rows(adapters: CudaAdapters, runs: list[AdaptedTokens], room: int = 0) -> Adapted:
    tiles = adapters.items(runs)
    items = np.zeros((max(room, len(tiles)), tiles.shape[1]), np.int64)
    items[: len(tiles)] = tiles
    return Adapted(torch.tensor([len(tiles)], dtype=torch.int32), torch.from_numpy(items), runs[0].first)


def add(
    x: torch.Tensor, adapters: CudaAdapters, runs: list[AdaptedTokens], place: int = 4 + QKV, room: int = 0
) -> Added:
    return add_low_rank(x, adapted_rows(adapters, runs, room), place, adapters.widths[place % 4], OUTPUTS, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.full)])
def test_what_is_added_depends_on_the_row_and_its_adapter_alone(dtype: torch.dtype, adapters: CudaAdapters) -> None:
    """In room for more, too, as graphs have."""
    x = torch.randn(45, INPUTS, generator=torch.Generator().manual_seed(3)).to(dtype)
    runs = [AdaptedTokens(A, 2, 3), AdaptedTokens(B, 3, 40), AdaptedTokens(A, 40, 45)]
    found = add(x, adapters, runs, room=45).numbers
    for digest, first, end in runs:
        of = PRODUCTS[digest]
        exact = x[first:end].double() @ of.a.double().t() * 0.5 @ of.b.double().t()
        assert torch.allclose(found[first:end].double(), exact, rtol=1e-4, atol=1e-3)
    for row, digest in ((2, A), (3, B), (21, B), (44, A)):
        alone = add(x[row : row + 1], adapters, [AdaptedTokens(digest, 0, 1)]).numbers
        assert torch.equal(alone[0], found[row])
    assert not add(x, adapters, runs, 4 + OUTPUT).numbers[2:].any()


@pytest.mark.parametrize("bias", [True, pytest.param(False, marks=pytest.mark.full)])
def test_products_add_it_before_they_round(bias: bool, adapters: CudaAdapters, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all tiles, behind slabs of the library, and to the rows that have an adapter only."""
    monkeypatch.setattr(products, "SLABS", (16,))
    monkeypatch.setattr(products, "library_product", lambda x, linear, out: multiply(x, linear, out.dtype, ANCHOR, out))
    numbers = torch.Generator().manual_seed(4)
    weight, x = (torch.randn(rows, INPUTS, generator=numbers).bfloat16() for rows in (OUTPUTS, 40))
    linear = Linear(weight, torch.randn(OUTPUTS, generator=numbers).bfloat16() if bias else None)
    multiplies = Products(adapted=True)
    shape = products.shape_of(linear, x.dtype, x.dtype)
    multiplies._library[shape] = (16,)
    sums = multiply(x, Linear(weight), torch.float32, PLAIN)
    for first in (20, 0):
        added = add(x, adapters, [AdaptedTokens(A, first, 23), AdaptedTokens(B, 23, 40)])
        whole = sums.clone()
        whole[first:] += added.numbers[first:]
        expected = (whole + linear.bias.float() if linear.bias is not None else whole).bfloat16()
        assert torch.equal(multiplies(x, linear, x.dtype, added=added), expected)
        for step in shape.steps[:2]:
            assert torch.equal(multiply(x, linear, x.dtype, step.tile, added=added), expected)


def test_a_tile_that_sums_otherwise_beside_adapters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SLABS", ())
    monkeypatch.setattr(products, "WHOLE", ())
    linear, x = Linear(torch.ones(32, 32).bfloat16()), torch.ones(70, 32).bfloat16()
    wrong = products.steps(32, x.dtype)[1].tile

    def other(x: torch.Tensor, linear: Linear, dtype: torch.dtype, tile: object, **given: object) -> torch.Tensor:
        return x.new_full((len(x), 32), 33.0 if tile == wrong and given.get("added") else 32.0, dtype=dtype)

    monkeypatch.setattr(products, "multiply", other)
    for adapted in (False, True):
        multiplies = Products(adapted)
        multiplies.settle(linear, x, x.dtype)
        (steps,) = multiplies._steps.values()
        assert (wrong in [step.tile for step in steps]) == (not adapted)


# --- whole models ---


def two_adapters(model: Path, files: Path) -> None:
    """Adapters of all linear layers that can have one; `b` has more than one tile of ranks."""
    cache = EngineSettings().cache_dir
    if not kept_at(model, cache).exists():
        keep_linears(model, cache)
    linears = load_linears(model, cache)
    for seed, (digest, rank) in enumerate([(A, 3), (B, 20)]):
        write_adapter(folder_of(files, digest), linears, seed, rank)


def make_jobs(digests: list[str], **sampling: object) -> list[Job]:
    numbers = random.Random(3)
    return [
        Job(
            f"r{i}/0", [numbers.randrange(2, 199) for _ in range(length)], SamplingParams(2, adapter=digest, **sampling)
        )
        for i, (length, digest) in enumerate(zip((1, 12, 3), digests, strict=True))
    ]


FAMILIES = ["phi3", "qwen2_moe", "gpt2", "glm4", "cohere2", "gemma4_text"]  # parallel halves, experts, joined weights


@pytest.mark.parametrize(
    "family", [FAMILIES[0], *(pytest.param(other, marks=pytest.mark.full) for other in FAMILIES[1:])]
)
def test_tokens_equal_those_of_transformers_layers(
    family: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """In random order, batches and chunks; of two adapters and none."""
    folder = tiny_model(family)
    two_adapters(folder, tmp_path)
    jobs = make_jobs([A, "", B], temperature=0.0)
    stock = Driver(Engine.load(folder, replace(STOCK, adapters=tmp_path))).run(make_jobs([A, "", B], temperature=0.0))
    plain = Driver(Engine.load(folder, STOCK)).run(make_jobs(["", "", ""], temperature=0.0))
    expected = [job.output for job in stock]
    assert [a == b.output for a, b in zip(expected, plain, strict=True)] == [False, True, False]
    assert [job.output for job in Driver(make_engine(folder, 8, tmp_path), random.Random(1)).run(jobs)] == expected


@pytest.mark.full
def test_bits_depend_on_the_request_alone(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Log probabilities alone and beside other adapters, in chunks, with blocks of another size; without one, those of
    an engine that serves none."""
    folder, digests = tiny_model("llama"), [B, "", A]
    two_adapters(folder, tmp_path)
    engine = make_engine(folder, 16, tmp_path)
    alone = [Driver(engine).run([job])[0] for job in make_jobs(digests, seed=1, logprobs=3)]
    plain = Driver(make_engine(folder, 16)).run(make_jobs(digests, seed=1, logprobs=3)[1:2])
    other = make_engine(folder, 8, tmp_path)
    again = Driver(other, random.Random(2)).run(make_jobs(digests, seed=1, logprobs=3))
    assert [(job.output, job.logprobs) for job in again] == [(job.output, job.logprobs) for job in alone]
    assert [(job.output, job.logprobs) for job in plain] == [(job.output, job.logprobs) for job in alone[1:2]]


@pytest.mark.full
def test_ranks_have_parts_of_adapters(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder, digests = tiny_model("llama"), [A, "", B]
    two_adapters(folder, tmp_path)
    expected = Driver(make_engine(folder, 8, tmp_path)).run(make_jobs(digests, temperature=0.0))
    settings = EngineSettings("cpu", "float32", block_size=8, tp=2, adapters=tmp_path, max_lora_rank=20)
    with RankProcesses(folder, settings, make_rank) as ranks:
        found = Driver(ranks, random.Random(1)).run(make_jobs(digests, temperature=0.0))
    assert [job.output for job in found] == [job.output for job in expected]
