"""Times, errors and bits of each way of one case."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from load.bench.engine.quantized_products.cases import Shape, exact
from load.bench.engine.quantized_products.ways import Runner

CHECKED = 8  # rows whose products are compared with float64


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    row_counts: tuple[int, ...] = (1, 4, 8, 32, 128, 512)
    rounds: int = 5
    window: float = 0.02  # seconds of calls that are averaged, one call at least
    slowest: float = 1.5  # seconds of a product: slower ones are left out


@dataclass(slots=True)
class Found:
    """What was measured of one way. Errors are divided by the root of the mean square of the exact products."""

    bytes: int
    largest_error: float
    mean_error: float
    differing: list[int]  # the row counts at which a row has other bits than at the largest one
    seconds: dict[int, list[float]] = field(default_factory=dict)  # a number for each round, by row count


def rows_of(shape: Shape, count: int) -> torch.Tensor:
    """Rows of normally distributed numbers that are bfloat16."""
    drawn = torch.Generator().manual_seed(1)
    return torch.randn(count, shape.inputs, generator=drawn).to(torch.bfloat16).to(torch.float32)


def measure(runners: Mapping[str, Runner], shape: Shape, scale: Scale) -> dict[str, Found]:
    """All ways take turns in each round."""
    rows = rows_of(shape, max(scale.row_counts))
    found = {name: _check(runner, rows, scale) for name, runner in runners.items()}
    for _ in range(scale.rounds):
        gc.collect()
        for count in scale.row_counts:
            for name, runner in runners.items():
                if count in found[name].seconds:
                    found[name].seconds[count].append(runner.seconds(rows[:count], scale.window))
    return found


def _check(runner: Runner, rows: torch.Tensor, scale: Scale) -> Found:
    """Multiply as many rows as are fast enough, and compare; an empty list of seconds for each count."""
    products: dict[int, torch.Tensor] = {}
    expected = 0.0
    for count in scale.row_counts:
        if products and expected * count > scale.slowest:
            break
        runner.product(rows[:count])  # costs that occur only once
        began = time.perf_counter()
        products[count] = runner.product(rows[:count])
        expected = (time.perf_counter() - began) / count
    largest, mean = _errors(runner, rows, next((found for n, found in products.items() if n >= CHECKED), None))
    return Found(runner.bytes, largest, mean, _differing(runner, rows, products), {count: [] for count in products})


def _errors(runner: Runner, rows: torch.Tensor, product: torch.Tensor | None) -> tuple[float, float]:
    """The largest and the mean error of the first rows."""
    given = rows[:CHECKED]
    product = runner.product(given) if product is None else product[: len(given)]
    right = given.to(torch.float64) @ exact(runner.weight).t()
    errors = (product.to(torch.float64) - right).abs() / right.square().mean().sqrt()
    return float(errors.max()), float(errors.mean())


def _differing(runner: Runner, rows: torch.Tensor, products: Mapping[int, torch.Tensor]) -> list[int]:
    """The row counts with other bits, single rows among them."""
    most = max(products)
    differing = [count for count, product in products.items() if not torch.equal(product, products[most][:count])]
    places: Sequence[int] = (most // 2, most - 1)
    if 1 not in differing and any(not _alone(runner, rows, at, products[most]) for at in places):
        differing.insert(0, 1)
    return differing


def _alone(runner: Runner, rows: torch.Tensor, at: int, product: torch.Tensor) -> bool:
    """Whether a row has the same bits alone."""
    return torch.equal(runner.product(rows[at : at + 1])[0], product[at])
