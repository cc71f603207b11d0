"""Products and attention of a model on their own: against float64, their bits, and their speed beside the library's."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from load.bench.bench import CUT, Bench, PartResult
from load.bench.timing import device_seconds
from load.report import table
from services.engine.backends.cuda import layers
from services.engine.backends.cuda.bits import BLOCK_SIZE, SPLITS, AttentionBits, settle_attention
from services.engine.backends.cuda.plan import Planner, Tiles
from services.engine.backends.cuda.products import SLABS, Products
from services.engine.families.decoder_weights import Linear
from services.engine.families.registry import spec_of
from services.engine.spec import DecoderSpec

ROWS = (1, 7, 64, 300)  # whose products are compared with float64
SPEED_ROWS = (1, 16, 64, 256, 2048)
COLD = 400 << 20  # bytes of weights that are read in turn: more than a GPU's caches hold


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the fast path; its result is `dtype`."""

    name: str
    inputs: int
    outputs: int
    dtype: torch.dtype

    def weights(self, bench: Bench, count: int) -> list[Linear]:
        """Random ones, the same on every machine if they are drawn first."""
        drawn = torch.Generator().manual_seed(self.inputs + self.outputs)
        first = torch.randn(self.outputs, self.inputs, generator=drawn).mul_(self.inputs**-0.5)
        return [Linear(first.to(bench.device, bench.dtype).clone()) for _ in range(count)]

    def rows(self, bench: Bench, count: int) -> torch.Tensor:
        drawn = torch.Generator().manual_seed(count)
        return torch.randn(count, self.inputs, generator=drawn).to(bench.device, bench.dtype)


def kernels(bench: Bench) -> PartResult:
    """The relative error of products and attention, against float64."""
    found = {}
    with torch.inference_mode():
        for product in _products(bench):
            (linear,), run = product.weights(bench, 1), Products()
            weight = linear.numbers.double().t()
            found[f"product {product.name}"] = max(
                _error(run(x, linear, product.dtype), x.double() @ weight)
                for x in (product.rows(bench, rows) for rows in ROWS)
            )
            del linear, weight
        of = _attention(bench)
        expected = _plain_attention(of)
        rows = 2 * SPLITS * len(of.lengths()) * of.part.queries_per_kv
        for name, tiles in {"wide": of.tiles, "narrow": of.tiles.narrow}.items():
            for merged, partial_rows in {"one program": 0, "several programs": rows}.items():
                found[f"attention, {name} tiles, {merged}"] = _error(of.run(tiles, partial_rows), expected)
    return PartResult(table(["kernel", "relative error"], [[name, f"{one:.1e}"] for name, one in found.items()]), found)


def bits(bench: Bench) -> PartResult:
    """Hashes of the bits of products and attention, and which ways to compute them are refused here."""
    found = {}
    with torch.inference_mode():
        for product in _products(bench):
            with _warnings() as refused:
                (linear,) = product.weights(bench, 1)
                hashed = Products().settle(linear, product.rows(bench, SLABS[0]), product.dtype)
            found[f"product {product.name}"] = {"hash": hashed.hex()[:8], "refused": refused}
        with _warnings() as refused:
            of = _attention(bench)
            rows = layers.PARTIAL_SPLITS * of.part.queries_per_kv
            hashed = settle_attention(of, Planner(of.part, of.tiles, of.multiprocessors, rows))
        found["attention"] = {"hash": hashed.hex()[:8], "refused": refused}
    lines = [[name, one["hash"], "; ".join(one["refused"]) or "nothing"] for name, one in found.items()]
    return PartResult(table(["what", "hash of its bits", "refused"], lines), found)


def speed(bench: Bench) -> PartResult:
    """The time of each product as the engine computes it, and of the library's, compared with the floor."""
    found: list[dict[str, Any]] = []
    rates = bench.rates
    with torch.inference_mode():
        for product in _products(bench):
            size = product.inputs * product.outputs * bench.dtype.itemsize
            linears = product.weights(bench, -(-COLD // size) if bench.device.type == "cuda" else 1)
            run = Products()
            run.settle(linears[0], product.rows(bench, SLABS[0]), product.dtype)
            for rows in SPEED_ROWS:
                if bench.budget.spent:
                    break
                x, flops = product.rows(bench, rows), 2 * rows * product.inputs * product.outputs
                ways = {
                    "engine": [partial(run, x, linear, product.dtype) for linear in linears],
                    "library": [partial(torch.mm, x, linear.numbers.t()) for linear in linears],
                }
                times = {way: device_seconds(calls, bench.device, bench.scale) for way, calls in ways.items()}
                floor = max(size / rates.bandwidth, flops / rates.best)
                found.append({"product": product.name, "rows": rows, "floor": floor, **times})
            del linears
    lines = [
        [
            *(one["product"], one["rows"]),
            *(f"{one[way] * 1e6:,.1f}" for way in ("floor", "engine", "library")),
            *(f"{one['floor'] / one['engine']:.0%}", f"{one['library'] / one['engine']:.2f}"),
        ]
        for one in found
    ]
    head = [
        "product",
        "rows",
        "floor, us",
        "engine, us",
        "library, us",
        "share of the floor's rate",
        "of the library's",
    ]
    return PartResult(table(head, lines) + (f"\n\n{CUT}" if bench.budget.spent else ""), found)


def _spec(bench: Bench) -> DecoderSpec:
    spec = spec_of(bench.config)
    assert spec, f"{bench.name} has no fast path"
    return spec


def products_of_a_layer(bench: Bench) -> list[Product]:
    """Without biases, with which the library is never used."""
    spec, dtype = _spec(bench), bench.dtype
    return [
        Product("qkv", spec.hidden, (spec.heads + 2 * spec.kv_heads) * spec.head_dim, dtype),
        Product("output", spec.heads * spec.head_dim, spec.hidden, dtype),
        Product("up", spec.hidden, spec.intermediate * (2 if spec.gated else 1), dtype),
        Product("down", spec.intermediate, spec.hidden, dtype),
    ]


def _products(bench: Bench) -> list[Product]:
    """The products of a layer, and that of the vocabulary."""
    spec = _spec(bench)
    return [*products_of_a_layer(bench), Product("vocabulary", spec.hidden, spec.vocab, torch.float32)]


def _attention(bench: Bench) -> AttentionBits:
    spec = _spec(bench)
    tiles = Tiles.fitting(bench.dtype, spec.head_dim)
    if bench.device.type == "cpu":  # an interpreter takes long
        tiles = replace(tiles, split=tiles.keys)
    device = bench.device
    return AttentionBits(spec.attention_of(0), tiles, bench.dtype, layers.multiprocessors_of(device), device)


def _plain_attention(of: AttentionBits) -> torch.Tensor:
    """[requests, heads * dim], in float64."""
    part, (_, qkv, keys, values) = of.part, of.drawn()
    queries = qkv.double().view(len(qkv), -1, part.head_dim)[:, : part.heads]
    rows, first = [], 0
    for query, length in zip(queries, of.lengths(), strict=True):
        blocks = slice(first, first := first + -(-length // BLOCK_SIZE))
        key = keys[blocks].double().permute(1, 0, 3, 2).flatten(1, 2)[:, :length]
        value = values[blocks].double().transpose(0, 1).flatten(1, 2)[:, :length]
        one = scaled_dot_product_attention(query[:, None], key, value, scale=part.scaling, enable_gqa=True)
        rows.append(one.flatten())
    return torch.stack(rows)


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference over the norm of what is expected. Raises ValueError from 1 on and for NaN."""
    error = float((found.double() - expected).norm() / expected.norm())
    if not error < 1.0:
        raise ValueError(f"relative error {error}")
    return error


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the backend warns of within."""
    found: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Keeps(logging.WARNING)
    log = logging.getLogger("services.engine.backends.cuda")
    log.addHandler(handler)
    try:
        yield found
    finally:
        log.removeHandler(handler)
