"""Every kernel compiles for compute capability 9.0, as the engine launches it, and products for others too. It needs no
GPU, and shows no speed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from marked import full

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

from services.engine.backends.cuda.coded import CodedLinear, CodedWeight, Coding
from services.engine.backends.cuda.kernels import (
    activation,
    attention,
    embedding,
    experts,
    heads,
    launch,
    low_rank,
    norm,
    product,
)
from services.engine.backends.cuda.plan import FIELDS, Tiles
from services.engine.batch.kv_cache import scale_numbers
from services.engine.families.decoder_weights import Linear, Table
from services.engine.sampling import triton_draw as draw
from services.engine.sampling import triton_rows
from services.engine.sampling.truncation import DeviceTruncation
from services.engine.spec import Activation, AttentionSpec, DecoderSpec, ExpertsSpec

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class Hopper:
    """What Triton asks a driver for before it compiles."""

    capability = 90

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


class Compiled:
    """In a kernel's place: compiles where it would be launched."""

    def __init__(self, kernel: JITFunction, made: list[Any]) -> None:
        self.kernel, self.made = kernel, made

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **kwargs: self.made.append(self.kernel.warmup(*args, grid=grid, **kwargs))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The kernels that a test's launches compile. Those that are launched early touch no memory before they wait."""
    made: list[Any] = []
    monkeypatch.setattr(driver, "_active", Hopper())
    monkeypatch.setattr(launch, "_launches_early", lambda device: Hopper.capability >= 10 * launch.LEAST)
    monkeypatch.setattr(launch, "_shared_memory", lambda device: SHARED[Hopper.capability] * 1024)
    for module, name in (
        (activation, "_activate"),
        (activation, "_soft_cap"),
        (attention, "_attend"),
        (embedding, "_embed"),
        (experts, "_choose"),
        (experts, "_sort"),
        (experts, "_combine"),
        (heads, "_place"),
        (heads, "_scale_all_heads"),
        (draw, "_plan"),
        (draw, "_race"),
        (draw, "_settle"),
        (draw, "_search"),
        (triton_rows, "_maxima"),
        (triton_rows, "_best"),
        (triton_rows, "_weigh"),
        (low_rank, "_shrink"),
        (low_rank, "_expand"),
        (norm, "_add_and_norm"),
        (product, "_multiply"),
    ):
        kernel = getattr(module, name)
        kernel.device_caches.clear()  # of kernels for another capability
        monkeypatch.setattr(module, name, Compiled(kernel, made))
    yield made
    for kernel in made:
        before, waits, _ = kernel.asm["ptx"].partition("griddepcontrol.wait")
        assert bool(waits) == kernel.metadata.launch_pdl, kernel.metadata.name
        # no way around it, either
        assert not waits or not re.search(r"\.global\.|cp\.async|\b(?:bra|ret)\b", before), kernel.metadata.name


def usage(kernel: Any, tmp_path: Path) -> dict[str, int]:
    """Registers of a thread, bytes of its stack (where registers are spilled to), and so on."""
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    told = subprocess.run([TOOLS / "cuobjdump", "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", told)}


def bf16(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def f32(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def i64(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")


def i32(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32, device="meta")


def attend(
    spec: AttentionSpec,
    block_size: int,
    tiles: Tiles,
    dtype: torch.dtype = torch.bfloat16,
    cached: torch.dtype | None = None,
) -> None:
    of, kv, dim = spec.heads, spec.kv_heads, spec.head_dim
    kept = dim + scale_numbers(cached or dtype)
    keys, values = (
        bf16(*shape).to(cached or dtype) for shape in ((100, kv, kept, block_size), (100, kv, block_size, kept))
    )
    work = attention.Work(i32(1), i32(9, FIELDS), i32(100))
    partials = attention.Partials(f32(64, kv, dim), f32(64, kv, 2), i32(64, kv), i32(2))
    qkv = bf16(9, (of + 2 * kv) * dim).to(dtype)
    sinks = f32(of) if spec.sinks else None
    attention.attend(qkv, keys, values, work, partials, spec, tiles, 132, sinks)


SHAPES = {
    "llama-3-8b": AttentionSpec(32, 8, 128, 128**-0.5),
    "gpt-2": AttentionSpec(12, 12, 64, 0.125),
    "mistral": AttentionSpec(32, 8, 128, 128**-0.5, window=4096),
    "gpt-oss": AttentionSpec(64, 8, 64, 0.125, window=128, sinks=True),
}


@pytest.mark.parametrize("model", ["mistral", "gpt-oss", *full(["llama-3-8b", "gpt-2"])])
@pytest.mark.parametrize("narrow", [False, True])
def test_attention_of_a_model(model: str, narrow: bool, made: list[Any], tmp_path: Path) -> None:
    """On tensor cores, with copies of 16 bytes at once, and next to nothing spilled."""
    tiles = Tiles.fitting(torch.bfloat16, SHAPES[model].head_dim)
    tiles = tiles.narrow if narrow else tiles
    attend(SHAPES[model], 16, tiles)
    (kernel,) = made
    found, ptx = usage(kernel, tmp_path), kernel.asm["ptx"]
    assert found["STACK"] <= 64, found
    assert kernel.metadata.shared <= 227 // tiles.resident * 1024
    assert found["REG"] <= (65_536 // (tiles.resident * 128)), found
    assert ("mma.sync" if narrow else "wgmma") in ptx
    assert re.search(r"cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], 0x10", ptx)
    assert not re.search(r"ld\.global[.\w]*\.b16 ", ptx), "keys or values number by number"
    assert narrow or re.search(r"cp\.async\.wait_group\s+[1-9]", ptx), "nothing is copied while it multiplies"


@pytest.mark.parametrize("narrow", [False, True])
def test_attention_in_eight_bits(narrow: bool, made: list[Any], tmp_path: Path) -> None:
    """On tensor cores, with copies of 16 codes at once (of 8 for few rows), and little spilled."""
    tiles = Tiles.fitting(torch.bfloat16, 128)
    tiles = tiles.narrow if narrow else tiles
    attend(SHAPES["llama-3-8b"], 16, tiles, cached=torch.int8)
    (kernel,) = made
    found, ptx = usage(kernel, tmp_path), kernel.asm["ptx"]
    assert found["STACK"] <= 128, found
    assert kernel.metadata.shared <= 227 // tiles.resident * 1024
    assert ("mma.sync" if narrow else "wgmma") in ptx
    assert re.search(rf"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], 0x{'8' if narrow else '10'}", ptx)
    assert not re.search(r"ld\.global[.\w]*\.b8 ", ptx), "keys or values number by number"


@pytest.mark.parametrize(
    ("spec", "block_size", "dtype"),
    [
        (AttentionSpec(8, 8, 64, 0.125), 5, torch.bfloat16),
        (AttentionSpec(8, 8, 256, 0.1, window=4096, soft_cap=50.0), 16, torch.bfloat16),  # Gemma 2's
        (AttentionSpec(8, 1, 512, 1.0), 16, torch.float32),
        *full(
            [
                (AttentionSpec(8, 8, 64, 0.125), 256, torch.float16),
                (AttentionSpec(8, 1, 512, 1.0), 16, torch.bfloat16),  # Gemma 4's
                (AttentionSpec(8, 8, 128, 0.1), 16, torch.float32),
            ]
        ),
    ],
)
def test_attention_of_other_shapes(
    spec: AttentionSpec, block_size: int, dtype: torch.dtype, made: list[Any], tmp_path: Path
) -> None:
    attend(spec, block_size, Tiles.fitting(dtype, spec.head_dim), dtype)
    assert usage(made[0], tmp_path)["STACK"] <= 64
    assert made[0].metadata.shared <= 227 * 1024


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("normed", [True, False])
def test_heads(rotary: bool, normed: bool, made: list[Any], tmp_path: Path) -> None:
    weight = f32(128) if normed else None
    table = heads.Rotary(f32(4096, 64), f32(4096, 64)) if rotary else None
    stores = bf16(100, 8, 128, 16), bf16(100, 8, 16, 128)
    heads.place(bf16(9, 48 * 128), i32(9), i32(9), *stores, heads.Heads(32, 1e-6, table, weight, weight))
    assert usage(made[0], tmp_path)["STACK"] == 0


def test_heads_of_other_families(made: list[Any], tmp_path: Path) -> None:
    """Norms over all heads, norms behind rotary embeddings, norms of values, values that are keys, queries alone; heads
    of 512 numbers."""
    for dim, more in (
        (128, {"norms_all_heads": True}),
        (128, {"norms_after_rotary": True}),
        (512, {"value_norms": True}),
        (512, {"value_norms": True, "has_values": False}),
        (256, {"has_keys": False}),
    ):
        table = heads.Rotary(f32(4096, dim // 2), f32(4096, dim // 2))
        weight = f32(32 * dim if "norms_all_heads" in more else dim)
        stores = bf16(100, 8, dim, 16), bf16(100, 8, 16, dim)
        heads.place(bf16(9, 48 * dim), i32(9), i32(9), *stores, heads.Heads(32, 1e-6, table, weight, weight, **more))
    assert len(made) == 5 + 1
    assert all(usage(kernel, tmp_path)["STACK"] == 0 for kernel in made)


def test_what_is_done_number_by_number(made: list[Any], tmp_path: Path) -> None:
    x, weight = f32(9, 5120), f32(5120)
    for mean, change, post in ((True, None, False), (False, bf16(9, 5120), False), (False, bf16(9, 5120), True)):
        norms = Linear(weight, weight if mean else None)
        added = None if change is None else norm.Change(change, norms if post else None, 0.5)
        norm.add_and_norm(x, added, norms, 1e-5, mean, torch.bfloat16)
        norm.add_and_norm(x, added, None if post else norms, 1e-5, mean, torch.bfloat16, i32(4))
    embedding.embed(i32(9), i32(9), Table(bf16(1000, 5120), 0), None)
    embedding.embed(i32(9), i32(9), Table(bf16(1000, 5120), 500), Table(bf16(512, 5120), 0))
    for each in Activation:
        if each != Activation.GELU_ERF:
            activation.activate(bf16(9, 8 * 5120), mlp(activation=each))
            activation.activate(bf16(9, 4 * 5120), mlp(activation=each, gated=False))
    activation.activate(bf16(9, 8 * 5120), mlp(swiglu_alpha=1.7, swiglu_limit=7.0))
    activation.activate_times(bf16(9, 256), f32(9, 30 * 256)[:, 256:512], Activation.GELU)
    activation.soft_cap(f32(9, 50_000), 30.0)
    assert len(made) == 8 + 9
    assert all(usage(kernel, tmp_path)["STACK"] == 0 for kernel in made)


def mlp(**fields: Any) -> DecoderSpec:
    return DecoderSpec("llama", 1, 64, 1, 1, 64, 64, 64, 1e-5, **fields)


def test_experts(made: list[Any], tmp_path: Path) -> None:
    """Qwen3-30B-A3B's, with softmax; GLM-4.5's, with sigmoids, a correction and a shared expert; a shared gate."""
    experts.choose(f32(9, 128), None, ExpertsSpec(128, 8, 768, True))
    experts.choose(f32(9, 160), f32(160), ExpertsSpec(160, 8, 1536, True, sigmoid=True, scale=2.5))
    experts.sort(i32(9, 8), 128)
    experts.combine(bf16(72, 2048), f32(9, 8))
    experts.combine(bf16(72, 2048), f32(9, 8), bf16(9, 2048), f32(9, 129)[:, 128])
    assert len(made) == 5
    assert all(usage(kernel, tmp_path)["STACK"] == 0 for kernel in made)


@pytest.mark.parametrize("vocab", [128_256, *full([50_257])])
def test_draws(vocab: int, made: list[Any], tmp_path: Path) -> None:
    """Next to nothing is spilled, and as many programs as there are threads for fit on a multiprocessor."""
    i64, f64 = (torch.empty(9, dtype=dtype, device="meta") for dtype in (torch.int64, torch.float64))
    logits, maxima = f32(9, vocab), f32(9, -(-vocab // triton_rows.CHUNK))
    draw.draw((logits, f32(3, vocab)), maxima, i64, DeviceTruncation(f32(9), f32(9), i64, f64), i64)
    triton_rows.maxima(logits)
    triton_rows.best(logits, maxima, i64, f32(9))
    triton_rows.weigh(logits, f32(9))
    assert [kernel.metadata.name for kernel in made] == [
        "_plan",
        "_race",
        "_settle",
        "_search",
        "_maxima",
        "_best",
        "_weigh",
    ]
    for kernel in made:
        used, seldom = usage(kernel, tmp_path), kernel.metadata.name == "_search"
        assert used["STACK"] <= 8, (kernel.metadata.name, used)
        assert used["REG"] <= (128 if seldom else 64), (kernel.metadata.name, used)
        assert seldom or kernel.metadata.shared <= 4096, kernel.metadata.name


# instructions that multiply matrices, by compute capability
MATRIX = {
    80: "mma.sync.aligned.m16n8k16",
    89: "mma.sync.aligned.m16n8k16",
    90: "wgmma.mma_async.sync.aligned.m64",
    100: "tcgen05.mma",
}
REGISTERS = {80: 255, 89: 255, 90: 216, 100: 240}  # the most of a thread
SHARED = {80: 163, 89: 99, 90: 227, 100: 227}  # KiB that a program may have


def table(
    capability: int, made: list[Any], tmp_path: Path, added: low_rank.Added | None = None
) -> list[tuple[product.Tile, dict[str, int], set[str]]]:
    """Each tile of products, its resources, and its instructions that multiply matrices."""
    found = []
    for tile in dict.fromkeys((product.ANCHOR, *(tile for _, _, tile in product.TILES))):
        made.clear()
        product.multiply(bf16(9, 4096), Linear(bf16(6144, 4096), bf16(6144)), torch.bfloat16, tile, added=added)
        used = usage(made[0], tmp_path) | {"SHARED": made[0].metadata.shared}
        instructions = re.findall(r"\b(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)[\w.:]*", made[0].asm["ptx"])
        found.append((tile, used, set(instructions)))
        print(f"sm_{capability} {tile}: {used} {found[-1][2]}")
    return found


@pytest.mark.parametrize(
    "capability", [90, *(pytest.param(other, marks=pytest.mark.full) for other in MATRIX if other != 90)]
)
def test_tiles_of_products(capability: int, made: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the widest matrix instructions that there are, with no spills, in the shared memory that there is. With `-s` a
    table is printed."""
    monkeypatch.setattr(Hopper, "capability", capability)
    for tile, used, instructions in table(capability, made, tmp_path):
        assert used["STACK"] == 0, (tile, used)
        assert used["REG"] <= REGISTERS[capability], (tile, used)
        assert used["SHARED"] <= SHARED[capability] * 1024, (tile, used)
        assert instructions, tile
        assert all(MATRIX[capability] in one for one in instructions), (tile, instructions)


@pytest.mark.full
def test_tiles_beside_adapters(made: list[Any], tmp_path: Path) -> None:
    """With the matrix instructions that tiles have without; little is spilled, and only by the largest one, behind its
    sums; and two tiles for codes."""
    added = low_rank.Added(f32(9, 6144), i64(1), 0)
    alone, beside = (table(90, made, tmp_path, each) for each in (None, added))
    for (tile, _, instructions), (_, used, own) in zip(alone, beside, strict=True):
        assert own == instructions
        assert used["STACK"] <= (512 if tile.rows == 256 else 0), (tile, used)
        assert used["SHARED"] <= SHARED[90] * 1024, (tile, used)
    for tile in (product.CODES_TILES[0][2], product.CODES_TILES[-1][2]):
        made.clear()
        product.multiply(bf16(9, 4096), by_codes(CODINGS["gptq"], 6144, 4096), torch.bfloat16, tile, added=added)
        assert usage(made[0], tmp_path)["STACK"] == 0, tile


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.full)])
def test_low_ranks(dtype: torch.dtype, made: list[Any], tmp_path: Path) -> None:
    """No tensor cores, which have fewer bits; `a` and `b` are read 16 bytes at once, though only a table knows where
    they are."""
    adapted = low_rank.Adapted(i32(1), i64(9, low_rank.ITEM), 0)
    low_rank.add_low_rank(f32(9, 4096).to(dtype), adapted, 3, 48, 6144, 132)
    assert [kernel.metadata.name for kernel in made] == ["_shrink", "_expand"]
    for kernel in made:
        found, ptx = usage(kernel, tmp_path), kernel.asm["ptx"]
        print(kernel.metadata.name, found, kernel.metadata.shared)
        assert found["STACK"] <= 8, found
        assert kernel.metadata.shared <= SHARED[90] // low_rank.RESIDENT * 1024
        assert found["REG"] <= 65_536 // (low_rank.RESIDENT * 128), found
        assert "mma" not in ptx
        assert re.search(r"ld\.global[.\w]*\.v4|cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], 0x10", ptx)
        assert not re.search(r"ld\.global\.b32 .*\+16|cp\.async\.ca\.shared", ptx), "numbers one by one"


# what most checkpoints have: GPTQ, AWQ, FP8 by output and of blocks, MXFP4, NVFP4, Q8_0, Q4_K, Q6_K
CODINGS = {
    "gptq": Coding(4, 32, 2, "integers", "halves", "middle", False),
    "awq": Coding(4, 32, 2, "integers", "halves", "zeros", False),
    "fp8": Coding(8, 32, 1, "e4m3", "floats", "middle", True),
    "fp8 of blocks": Coding(8, 32, 1, "e4m3", "floats", "middle", False),
    "mxfp4": Coding(4, 32, 8, "e2m1", "exponents", "middle", False),
    "nvfp4": Coding(4, 16, 8, "e2m1", "table", "middle", False),
    "Q8_0": Coding(8, 32, 4, "integers", "halves", "middle", False),
    "Q4_K": Coding(4, 32, 8, "integers", "supers", "offsets", False),
    "Q6_K": Coding(8, 16, 4, "integers", "supers", "middle", False),
}


def by_codes(coding: Coding, outputs: int, inputs: int) -> CodedLinear:
    steps = inputs // coding.step
    factors = i32(1 if coding.once else steps, coding.factor_words, outputs)
    codes = CodedWeight(i32(outputs, steps * coding.plane), factors, f32(256), coding)
    return CodedLinear(bf16(outputs, inputs), codes=codes)


TILES_OF_CODES = [tile for _, _, tile in product.CODES_TILES]


@pytest.mark.parametrize(
    ("name", "tiles"),
    [
        ("awq", [TILES_OF_CODES[0], TILES_OF_CODES[-1]]),
        *((name, TILES_OF_CODES[:1]) for name in ("fp8", "mxfp4", "Q4_K")),
        *full([("awq", TILES_OF_CODES[1:-1]), ("fp8", TILES_OF_CODES[1:])]),
        *full((name, TILES_OF_CODES[:1]) for name in ("gptq", "fp8 of blocks", "nvfp4", "Q8_0", "Q6_K")),
    ],
)
def test_tiles_of_products_by_codes(name: str, tiles: list[product.Tile], made: list[Any], tmp_path: Path) -> None:
    """On the widest matrix instructions, with codes that are copied 16 bytes at once and widened in registers; nothing
    is spilled. With `-s` a table is printed."""
    product._multiply.kernel.device_caches.clear()
    for tile in tiles:
        made.clear()
        product.multiply(bf16(9, 4096), by_codes(CODINGS[name], 6144, 4096), torch.bfloat16, tile)
        used, ptx = usage(made[0], tmp_path) | {"SHARED": made[0].metadata.shared}, made[0].asm["ptx"]
        print(f"{name}: {tile}: {used}")
        assert used["STACK"] == 0, (tile, used)
        assert used["REG"] <= 255, (tile, used)
        assert used["SHARED"] <= SHARED[90] * 1024, (tile, used)
        assert re.search(r"cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], 0x10", ptx)
        # four registers have a tile's left operand
        assert re.search(rf"wgmma\.mma_async\.sync\.aligned\.m64n{tile.rows}k16[\w.]*\s+\{{[^}}]*\}}, \{{", ptx), tile


@pytest.mark.parametrize(
    ("dim", "dtype", "name"),
    [
        (512, torch.float32, "Q4_K"),
        *full([(256, torch.bfloat16, "mxfp4"), (512, torch.bfloat16, "nvfp4")]),
    ],
)
def test_attention_and_codes_with_less_shared_memory(
    dim: int, dtype: torch.dtype, name: str, made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no other way: the largest heads, and the anchors of the formats that read most at once."""
    monkeypatch.setattr(Hopper, "capability", 89)
    attend(AttentionSpec(8, 1, dim, 1.0), 16, Tiles.fitting(dtype, dim), dtype)
    product.multiply(bf16(9, 4096), by_codes(CODINGS[name], 6144, 4096), torch.bfloat16, product.CODES_ANCHOR)
    assert len(made) == 2
    print(name, dim, dtype, [kernel.metadata.shared for kernel in made])
    assert all(kernel.metadata.shared <= SHARED[89] * 1024 for kernel in made)


OF_EXPERTS = [product.PLAIN, *dict.fromkeys(tile for _, _, tile in product.TILES)]


@pytest.mark.parametrize(
    "tile",
    [*OF_EXPERTS[:2], *(pytest.param(tile, marks=pytest.mark.full) for tile in OF_EXPERTS[2:-1]), OF_EXPERTS[-1]],
)
def test_products_of_experts(tile: product.Tile, made: list[Any], tmp_path: Path) -> None:
    """On the same matrix instructions as products of one weight, with no spills."""
    dtype = torch.float32 if tile == product.PLAIN else torch.bfloat16
    routes = experts.Routes(i32(72), i32(128), 8)
    weight, bias = f32(128, 1536, 2048).to(dtype), f32(128, 1536).to(dtype)
    product.multiply(f32(9, 2048).to(dtype), Linear(weight, bias), dtype, tile, routes=routes)
    found = usage(made[0], tmp_path)
    assert found["STACK"] == 0, found
    assert made[0].metadata.shared <= SHARED[90] * 1024
    assert tile == product.PLAIN or "wgmma" in made[0].asm["ptx"]


def test_products_in_float32(made: list[Any], tmp_path: Path) -> None:
    product.multiply(f32(9, 4096), Linear(f32(6144, 4096)), torch.float32, product.PLAIN)
    assert usage(made[0], tmp_path)["STACK"] == 0
