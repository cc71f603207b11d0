"""Products by weights as checkpoints store them, of each format: their bits, and their speed beside the floor of their
bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from load.bench.bench import CUT, Bench, PartResult
from load.bench.kernels import COLD, Product, products_of_a_layer
from load.bench.timing import device_seconds
from load.report import table
from services.engine.backends.cuda.coded import CodedLinear, encode
from services.engine.backends.cuda.kernels.product import anchor, multiply
from services.engine.backends.cuda.products import Products
from services.engine.families.decoder_weights import Linear
from services.engine.weights.description import tensor_bytes
from services.engine.weights.quantized import SUPER, QuantizedWeight, Values

ROWS = (1, 32, 256)
CHECKED = (1, 5, 300)  # rows whose bits are compared with those of the widened weight
BUDGET = 0.03  # seconds of a timing: there are many
MOST_COPIES = 64

Draw = Callable[[int, int], QuantizedWeight]  # of so many outputs and inputs


def integers(bits: int, group: int, zeros: bool, outputs: int, inputs: int) -> QuantizedWeight:
    """As GPTQ, AWQ and Q8_0 store them, with float16s."""
    codes = torch.randint(1 << bits, (outputs, inputs), dtype=torch.uint8)
    scales = (torch.rand(outputs, inputs // group) * 0.01).to(torch.float16).to(torch.float32)
    middles = torch.full_like(scales, 1 << bits - 1)
    return QuantizedWeight(
        codes, scales, -scales * (torch.randint_like(middles, 1 << bits) if zeros else middles), bits, group
    )


def k_quants(bits: int, group: int, centred: bool, outputs: int, inputs: int) -> QuantizedWeight:
    """As GGUF files store Q4_K and Q6_K: integers times float16s are scales, and, unless centred, offsets."""
    codes = torch.randint(1 << bits, (outputs, inputs), dtype=torch.uint8)

    def multiples() -> tuple[torch.Tensor, torch.Tensor]:
        large = (torch.rand(outputs, inputs // SUPER) * 0.001).to(torch.float16).to(torch.float32)
        counts = torch.randint(1, 64, (outputs, inputs // group))
        return large.repeat_interleave(SUPER // group, 1) * counts, large

    scales, large = multiples()
    middle = -(1 << bits - 1)
    offsets, other = (scales * middle, large * middle) if centred else multiples()
    return QuantizedWeight(codes, scales, offsets, bits, group, supers=(large, other))


def floats(values: Values, group: int, scales: str, outputs: int, inputs: int) -> QuantizedWeight:
    """FP8 and floats of four bits. `group`: 0 is all inputs."""
    group = group or inputs
    codes = torch.randint(16 if values.book else 126, (outputs, inputs), dtype=torch.uint8)
    shape = outputs, inputs // group
    drawn = torch.rand(shape)
    if scales == "powers":
        drawn = torch.exp2(torch.randint(-12, -4, shape).to(torch.float32))
    elif scales == "e4m3":
        drawn = (drawn * 400).to(torch.float8_e4m3fn).to(torch.float32) / 4096.7
    return QuantizedWeight.of_values(codes, drawn * 2.0**-8, group, values)


FORMATS: dict[str, Draw] = {
    "gptq": partial(integers, 4, 128, False),
    "awq": partial(integers, 4, 128, True),
    "fp8 by output": partial(floats, Values.E4M3, 0, "floats"),
    "fp8 of blocks": partial(floats, Values.E4M3, 128, "floats"),
    "mxfp4": partial(floats, Values.E2M1, 32, "powers"),
    "nvfp4": partial(floats, Values.E2M1, 16, "e4m3"),
    "Q8_0": partial(integers, 8, 32, False),
    "Q4_0": partial(integers, 4, 32, False),
    "Q4_K": partial(k_quants, 4, 32, False),
    "Q6_K": partial(k_quants, 6, 16, True),
}


def formats(bench: Bench) -> PartResult:
    """Products of a layer by weights of each format."""
    found: list[dict[str, Any]] = []
    with torch.inference_mode():
        products = products_of_a_layer(bench)
        for name, draw in FORMATS.items():
            if bench.budget.spent:
                break
            found += _measure(bench, name, draw, products)
    names = [product.name for product in products]
    lines = [
        [
            *(one["format"], one["bits of a weight"], one["bits"], one["rows"]),
            *(f"{one['floors'][each] / one['times'][each]:.0%}" for each in names),
            *(f"{sum(one[kind].values()) * 1e6:,.1f}" for kind in ("floors", "times")),
            f"{sum(one['floors'].values()) / sum(one['times'].values()):.0%}",
        ]
        for one in found
    ]
    head = [
        "format",
        "bits of a weight",
        "bits",
        "rows",
        *names,
        "floor of all, us",
        "engine, us",
        "share of the floor's rate",
    ]
    return PartResult(table(head, lines) + (f"\n\n{CUT}" if bench.budget.spent else ""), found)


def _measure(bench: Bench, name: str, draw: Draw, products: list[Product]) -> list[dict[str, Any]]:
    """The bits and times of products by this format, at each number of rows."""
    run, bits, stored = Products(), "", 0.0
    floors: dict[int, dict[str, float]] = {rows: {} for rows in ROWS}
    times: dict[int, dict[str, float]] = {rows: {} for rows in ROWS}
    scale = replace(bench.scale, budget=min(BUDGET, bench.scale.budget))
    for product in products:
        with torch.device(bench.device):
            weight = draw(product.outputs, product.inputs)
        linear = encode(Linear(weight), bench.device)
        assert linear, name
        stored = 8 * linear.codes.weight_bytes
        bits = bits or ("equal" if _keeps_bits(bench, product, weight, linear) else "differ")
        size = tensor_bytes(linear.codes)
        copies = min(MOST_COPIES, -(-COLD // size)) if bench.device.type == "cuda" else 1
        linears = [linear, *(_copy(linear) for _ in range(1, copies))]
        for rows in ROWS:
            x, flops = product.rows(bench, rows), 2 * rows * product.inputs * product.outputs
            calls = [partial(run, x, each, product.dtype) for each in linears]
            floors[rows][product.name] = max(size / bench.rates.bandwidth, flops / bench.rates.best)
            times[rows][product.name] = device_seconds(calls, bench.device, scale)
    told = {"format": name, "bits of a weight": f"{stored:.2f}", "bits": bits}
    return [{**told, "rows": rows, "floors": floors[rows], "times": times[rows]} for rows in ROWS]


def _keeps_bits(bench: Bench, product: Product, weight: QuantizedWeight, linear: CodedLinear) -> bool:
    """Whether products by codes have the bits of those by the widened weight."""
    widened, run = Linear(weight.dequantize().to(bench.dtype)), Products()
    rows = [product.rows(bench, count) for count in CHECKED]
    return all(
        torch.equal(run(x, linear, product.dtype), multiply(x, widened, product.dtype, anchor(bench.dtype)))
        for x in rows
    )


def _copy(linear: CodedLinear) -> CodedLinear:
    codes = linear.codes
    return replace(linear, codes=replace(codes, words=codes.words.clone(), factors=codes.factors.clone()))
