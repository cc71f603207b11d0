"""Products: which way each product of a model is computed, by its number of rows. All ways have the same bits."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from triton.runtime.errors import OutOfResources

from services.engine.backends.cuda.coded import CodedLinear, Coding
from services.engine.backends.cuda.kernels.experts import Routes, sort
from services.engine.backends.cuda.kernels.low_rank import Added
from services.engine.backends.cuda.kernels.product import Step, Tile, anchor, multiply, steps, stored
from services.engine.families.decoder_weights import Linear

# The device's library chooses its kernel, and with it the order of sums, by the number of rows. So it is asked for
# these numbers only, for which its bits were compared; a tile computes what is left. Many rows are cut into SLABS.
# The others, of iterations with so many increments, are taken whole: to cut them would read the weights twice.
SLABS = (2048, 1024, 512)
WHOLE = (256, 224, 192, 160, *range(128, 48, -16))
ALIGNED = 8  # numbers of 16 bits: what the library's fast kernels need of inputs and outputs

Way = Callable[[int, Tile], torch.Tensor]  # to compute the product of so many rows

log = logging.getLogger(__name__)


class Shape(NamedTuple):
    """What a product's ways, and their bits, depend on. The dtypes are those of operands and result."""

    experts: int  # 0: of a weight of none
    outputs: int
    inputs: int
    operands: torch.dtype
    result: torch.dtype
    coding: Coding | None

    @property
    def anchor(self) -> Tile:
        """The tile whose bits are those of every other way."""
        return anchor(self.operands, self.coding is not None)

    @property
    def steps(self) -> list[Step]:
        return steps(self.outputs, self.operands, self.coding is not None)


class Products:
    """Multiplies by weights with float32 sums in ascending order of the inputs, so a row's bits depend on it alone.

    A way is used for a shape once `settle` has compared its bits with those of `anchor`; until then only tiles are.
    The library rounds its sums, so what adapters add comes in tiles, and a batch with adapters is cut into slabs only
    before its first row with one.
    """

    def __init__(self, adapted: bool = False) -> None:
        """`adapted`: whether adapters will add to products."""
        self._adapted = adapted
        self._library: dict[Shape, tuple[int, ...]] = {}  # numbers of rows
        self._steps: dict[Shape, list[Step]] = {}  # with the tiles that are used

    def __call__(
        self,
        x: torch.Tensor,
        linear: Linear,
        dtype: torch.dtype,
        out: torch.Tensor | None = None,
        added: Added | None = None,
    ) -> torch.Tensor:
        """x [rows, inputs] times the weight [outputs, inputs] transposed, plus what is `added` and the bias: [rows,
        outputs] in `dtype`, in `out` if it is given."""
        shape = shape_of(linear, x.dtype, dtype)
        rows, begin = len(x), 0
        plain = added.plain if added else rows
        if out is None:
            out = torch.empty(rows, shape.outputs, dtype=dtype, device=x.device)
        if linear.bias is None:
            for count in self._library.get(shape, ()):
                while plain - begin >= count if count in SLABS else rows - begin == count == plain - begin:
                    library_product(x[begin : begin + count], linear, out[begin : begin + count])
                    begin += count
        if begin < rows:
            multiply(x[begin:], linear, dtype, self._tile(shape, rows - begin), out[begin:], added=added, begin=begin)
        return out

    def of_experts(self, x: torch.Tensor, linear: Linear, routes: Routes, dtype: torch.dtype) -> torch.Tensor:
        """Rows of x times the weights of the experts that `routes` name, see `multiply`: [places, outputs] in
        `dtype`."""
        shape, places = shape_of(linear, x.dtype, dtype), len(routes.places)
        tile = self._tile(shape, -(-places // len(routes.ends)))
        return multiply(x, linear, dtype, tile, routes=routes)

    def settle(self, linear: Linear, x: torch.Tensor, dtype: torch.dtype) -> bytes:
        """Compare the bits of each way to multiply x [at least SLABS[0], inputs] by this weight, at every number of
        rows where the way changes, and refuse those that differ. Returns a hash of the bits. The host waits."""
        shape = shape_of(linear, x.dtype, dtype)

        def way(rows: int, tile: Tile, added: Added | None = None) -> torch.Tensor:
            return multiply(x[:rows], linear, dtype, tile, added=added)

        zeros = self._zeros(shape, len(x), x.device)
        expected = self._settle_tiles(shape, len(x), way, *([partial(way, added=zeros)] if zeros else []))
        counts = (count for count in (*SLABS, *WHOLE) if self._keeps_bits(count, linear, x, expected))
        self._library[shape] = tuple(counts)
        return _hash(expected)

    def settle_experts(self, linear: Linear, x: torch.Tensor, dtype: torch.dtype) -> bytes:
        """`settle` for the weights of experts, to which rows of x go in turn."""
        experts = linear.weight.shape[0]
        turns = (torch.arange(len(x), device=x.device) % experts).int()[:, None]

        def way(rows: int, tile: Tile) -> torch.Tensor:
            return multiply(x[:rows], linear, dtype, tile, routes=sort(turns[:rows], experts))

        return _hash(self._settle_tiles(shape_of(linear, x.dtype, dtype), len(x), way))

    def _zeros(self, shape: Shape, rows: int, device: torch.device) -> Added | None:
        """Adds nothing to a product that adapters may change."""
        if not self._adapted or shape.operands != shape.result:
            return None
        first = torch.zeros(1, dtype=torch.int64, device=device)
        return Added(torch.zeros(rows, shape.outputs, device=device), first, 0)

    def _settle_tiles(self, shape: Shape, most: int, way: Way, *others: Way) -> torch.Tensor:
        """Keep for each number of rows the first tile, of its own and those for fewer rows, that does not change what
        `way` computes of so many rows, nor what the others do. Returns that of the `most` rows."""
        expected = way(most, shape.anchor)
        kept: list[Step] = []
        for step in shape.steps:
            counts = step.least, min(step.most, most)
            tiles = (step.tile, *(earlier.tile for earlier in reversed(kept)))
            each = (way, *others)
            same = (tile for tile in tiles if all(_keeps(shape, tile, counts, one, expected) for one in each))
            kept.append(replace(step, tile=next(same, shape.anchor)))
        self._steps[shape] = kept
        return expected

    def load(self, linear: Linear, operands: torch.dtype, dtype: torch.dtype) -> None:
        """Compute a product in each way that `settle` has left for this weight, so that its kernels are loaded."""
        shape, device = shape_of(linear, operands, dtype), stored(linear).device
        *experts, outputs, inputs = linear.weight.shape
        # hardly ever are so many logits computed at once
        counts = self._library.get(shape, ()) if operands == dtype else ()
        x = torch.zeros(max((1, *counts)), inputs, dtype=operands, device=device)
        out = torch.empty(len(x), outputs, dtype=dtype, device=device)
        routes = sort(torch.zeros(1, 1, dtype=torch.int32, device=device), experts[0]) if experts else None
        zeros = None if routes else self._zeros(shape, 1, device)
        for step in shape.steps:
            for added in (None, zeros) if zeros else (None,):
                multiply(x[:1], linear, dtype, self._tile(shape, step.least), out[:1], routes=routes, added=added)
        for count in counts:
            library_product(x[:count], linear, out[:count])

    def _keeps_bits(self, count: int, linear: Linear, x: torch.Tensor, expected: torch.Tensor) -> bool:
        """Whether the library's product of so many rows, at two places of x, is the expected one."""
        outputs, inputs = linear.weight.shape
        if isinstance(linear, CodedLinear) or linear.bias is not None or x.dtype.itemsize > 2:
            return False
        if outputs % ALIGNED or inputs % ALIGNED:
            return False
        out = torch.empty(count, outputs, dtype=expected.dtype, device=x.device)
        for begin in {0, len(x) - count}:
            library_product(x[begin : begin + count], linear, out)
            if not torch.equal(out, expected[begin : begin + count]):
                log.warning("product %s: the library's differs at %d rows, not used", tuple(linear.weight.shape), count)
                return False
        return True

    def _tile(self, shape: Shape, rows: int) -> Tile:
        return next(step.tile for step in self._steps.get(shape, shape.steps) if rows <= step.most)


def _keeps(shape: Shape, tile: Tile, counts: Iterable[int], way: Way, expected: torch.Tensor) -> bool:
    """Whether `way` computes what is expected with this tile, of each of these numbers of rows."""
    for rows in counts:
        try:
            found = way(rows, tile)
        except OutOfResources as error:
            log.info("product %s: %s does not fit this GPU, not used: %s", shape, tile, error)
            return False
        if not torch.equal(found, expected[:rows]):
            log.warning("product %s: %s differs from %s at %d rows, not used", shape, tile, shape.anchor, rows)
            return False
    return True


def library_product(x: torch.Tensor, linear: Linear, out: torch.Tensor) -> None:
    """Multiply by the device's library into `out`. There is no bias."""
    weight = linear.numbers.t()
    if out.dtype == x.dtype:
        torch.mm(x, weight, out=out)
    else:
        torch.mm(x, weight, out_dtype=out.dtype, out=out)


def shape_of(linear: Linear, operands: torch.dtype, result: torch.dtype) -> Shape:
    *experts, outputs, inputs = linear.weight.shape
    coding = linear.codes.coding if isinstance(linear, CodedLinear) else None
    return Shape((experts or [0])[0], outputs, inputs, operands, result, coding)


def _hash(numbers: torch.Tensor) -> bytes:
    return hashlib.sha256(numbers.view(torch.uint8).cpu().numpy().tobytes()).digest()
