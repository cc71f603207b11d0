"""LoRA adapters as a family's products have them. The family's own reader joins, cuts and orders them like weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from services.adapters.peft import LowRank
from services.engine.adapters import LowRankLayer, LowRankProduct
from services.engine.families.decoder_weights import Linear
from services.engine.families.registry import WHOLE, open_weights
from services.engine.parallel.layout import Partition, RowRange
from services.engine.spec import DecoderSpec
from services.engine.weights.quantized import GroupFormat, Weight
from services.engine.weights.tensors import Tensors
from services.models.linears import LinearShape

SUFFIX = ".weight"


def read_layer(
    spec: DecoderSpec,
    index: int,
    parts: Mapping[str, LowRank],
    linears: Mapping[str, LinearShape],
    base: Tensors,
    partition: Partition = WHOLE,
) -> LowRankLayer:
    """An adapter's `parts` in layer `index` of a model with this spec, for a partition. `base`: the model's tensors."""
    prefix = f".{index}."
    own = {name: part for name, part in parts.items() if prefix in f".{name}"}
    tensors = _Rows(own, linears, base)
    weights = open_weights(spec, tensors, partition).layer(index)
    products = [tensors.product(linear) for linear in (weights.qkv, weights.output, weights.up, weights.down)]
    qkv, output, up, down = (product for product, _ in products)
    return LowRankLayer(qkv, output, up, down, frozenset(name for _, names in products for name in names))


class _Rows:
    """In place of each weight, the rows of all parts' `b` beside each other: [outputs, rank of all]. A weight without a
    part has zeros. Everything else is the base's. See Tensors."""

    def __init__(self, parts: Mapping[str, LowRank], linears: Mapping[str, LinearShape], base: Tensors) -> None:
        self._parts, self._linears, self._base = parts, linears, base
        self._inputs: dict[str, RowRange | None] = {}  # that were asked for
        self._columns: dict[str, RowRange] = {}
        self._rank = 0
        for name, part in parts.items():
            self._columns[name] = self._rank, self._rank + len(part.a)
            self._rank += len(part.a)

    @property
    def groups(self) -> dict[str, GroupFormat]:
        return {}

    def __contains__(self, name: str) -> bool:
        return name in self._base

    def rows(self, name: str) -> int:
        return self._base.rows(name)

    def weight(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> Weight:
        if shape := self._linears.get(name.removesuffix(SUFFIX)):
            return self._of(name.removesuffix(SUFFIX), shape, rows, columns)
        return self._base.weight(name, rows, columns)

    def read(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> torch.Tensor:
        shape = self._linears.get(name.removesuffix(SUFFIX)) if name.endswith(SUFFIX) else None
        if shape and shape.inputs_first:
            return self._of(name.removesuffix(SUFFIX), shape, columns, rows).t()
        return self._base.read(name, rows, columns)

    def _of(self, module: str, shape: LinearShape, outputs: RowRange | None, inputs: RowRange | None) -> torch.Tensor:
        first, end = outputs or (0, shape.outputs)
        found = torch.zeros(end - first, self._rank)
        if part := self._parts.get(module):
            self._inputs[module] = inputs
            found[:, slice(*self._columns[module])] = torch.from_numpy(part.b[first:end])
        return found

    def product(self, linear: Linear | None) -> tuple[LowRankProduct | None, list[str]]:
        """What these rows, as the family has joined and ordered them, add to its product; and the linear layers that it
        consists of. Parts whose rows are zeros add nothing."""
        if linear is None:
            return None, []
        used = (linear.numbers != 0).any(0)
        names = [name for name, columns in self._columns.items() if used[slice(*columns)].any()]
        if not names:
            return None, []
        chosen = torch.cat([torch.arange(*self._columns[name]) for name in names])
        a = [self._parts[name].a[:, slice(*(self._inputs[name] or (None, None)))] for name in names]
        scales = [torch.full((len(self._parts[name].a),), self._parts[name].scale) for name in names]
        b = linear.numbers[:, chosen].contiguous()
        return LowRankProduct(torch.cat([torch.from_numpy(each) for each in a]), b, torch.cat(scales)), names
