"""What a way to multiply is: it packs weights, and multiplies rows by them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from load.bench.engine.quantized_products.cases import Case
from services.engine.families.quantized import Weight

Multiply = Callable[[torch.Tensor], torch.Tensor]
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL_CACHE = 32 << 20
TIMES_CACHE = 2  # copies of the weights together are larger than the cache by this, so that none is in it


@dataclass(frozen=True, slots=True)
class Product:
    """Packed weights of a case."""

    weight: Weight  # what they stand for
    bytes: int  # that a product reads of them
    rows: torch.dtype  # of the rows that it takes
    copy: Callable[[], Multiply]  # multiplies by a copy of the packed weights


class Unavailable(Exception):
    """A library does not have this way on this machine."""


Way = Callable[[Case], Product]  # raises Unavailable


class Runner(Protocol):
    """Runs a way of one case."""

    bytes: int

    @property
    def weight(self) -> Weight:
        """What the packed weights stand for."""

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """The product of rows [rows, inputs], in float32."""

    def seconds(self, rows: torch.Tensor, window: float) -> float:
        """Of one product, as the mean over so many seconds or one call, by a copy of the weights that is not in the
        cache."""


def last_cache() -> int:
    """Bytes of the last-level cache; USUAL_CACHE where the system does not tell."""
    sizes = (file.read_text().strip() for file in CACHES.glob("index*/size"))
    return max((int(size.removesuffix("K")) << 10 for size in sizes if size.endswith("K")), default=USUAL_CACHE)


def copies(bytes: int, cache: int) -> int:
    """How many of these are larger than the cache."""
    return max(1, -(-TIMES_CACHE * cache // bytes))


class InProcess:
    """Runs a way in this process."""

    def __init__(self, product: Product, cache: int) -> None:
        self.weight: Weight = product.weight
        self.bytes = product.bytes
        self._dtype = product.rows
        self._turn = itertools.cycle([product.copy() for _ in range(copies(product.bytes, cache))])

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """See Runner."""
        return next(self._turn)(rows.to(self._dtype)).to(torch.float32).clone()

    def seconds(self, rows: torch.Tensor, window: float) -> float:
        """See Runner."""
        given = rows.to(self._dtype)
        began, calls = time.perf_counter(), 0
        while not calls or time.perf_counter() - began < window:
            next(self._turn)(given)
            calls += 1
        return (time.perf_counter() - began) / calls
