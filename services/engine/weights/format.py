"""Format: how a quantization method stores the weights of a module. Each method implements it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from services.engine.parallel.layout import RowRange
from services.engine.weights.quantized import GroupFormat, QuantizedWeight, Weight
from services.engine.weights.tensors import Checkpoint
from services.errors import ModelError

# how a QuantizedWeight is stored, or why a weight is numbers that no backend executes as it is stored
Groups = GroupFormat | str
Config = Mapping[str, Any]  # the `quantization_config` of a folder's config.json


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of one module, by the ends of their names behind `stem`. `expert`: that of several which it is."""

    stored: Checkpoint
    stem: str
    expert: int | None = None

    def tensor(self, name: str, rows: RowRange | None = None) -> torch.Tensor:
        """A tensor, or these rows of it. Raises ModelError if the module has no tensor of this name."""
        if self.expert is None:
            return self.stored.read(self.stem + name, rows)
        own = self.stored.read(self.stem + name, (self.expert, self.expert + 1))[0]
        return own[slice(*rows)] if rows else own

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it. Raises ModelError if the module has no tensor of this name."""
        shape = self.stored.shape(self.stem + name)
        return shape if self.expert is None else shape[1:]

    def optional(self, name: str) -> torch.Tensor | None:
        """A tensor, or None if the module has none of this name."""
        return self.tensor(name) if name in self else None

    def __contains__(self, name: str) -> bool:
        return self.stem + name in self.stored


@dataclass(frozen=True, slots=True)
class Format:
    """`marks`: a tensor whose name ends so belongs to a quantized weight, whose own name has the other end instead.
    `parts`: the ends of all tensors that only `read` uses. `method`: for people. `groups`: what `read` will return,
    from shapes and order alone; modules of a checkpoint may differ.

    `of_experts`: the tensors have the parts of all experts of a layer, and `read` gets those of one. transformers has
    such weights as [experts, inputs, outputs]."""

    marks: Mapping[str, str]
    parts: tuple[str, ...]
    read: Callable[[Parts], Weight]  # the weight [outputs, inputs]
    method: str
    groups: Callable[[Parts], Groups]
    of_experts: bool = False


def field(config: Config, name: str, served: tuple[Any, ...], default: Any) -> Any:
    """The value of a field of the config. Raises ModelError if it is not among `served`."""
    value = config.get(name, default)
    if value not in served:
        values = " or ".join(str(each) for each in served)
        raise ModelError(f"{config['quant_method']} with {name}={value} is not served, only {name} {values}")
    return value


def grouped(
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | float,
    bits: int,
    order: torch.Tensor | None = None,
) -> Weight:
    """The weight `scales * (codes - zeros)`; scales and zeros are [outputs, groups]. `order`: the group of each input;
    None: neighbours are a group. With act-order, the inputs of a group are not neighbours; then these are numbers."""
    inputs, groups = codes.shape[1], scales.shape[1]
    factors = scales.to(torch.float32).contiguous()
    offsets = -factors * zeros
    if group := neighbours(inputs, groups, order):
        return QuantizedWeight(codes, factors, offsets, bits, group)
    if order is None:
        raise ModelError(f"{inputs} inputs in {groups} groups, without the group of each, are not served")
    of = order.long()
    return QuantizedWeight(codes, factors[:, of], offsets[:, of], bits, 1).dequantize(torch.bfloat16)


def neighbours(inputs: int, groups: int, order: torch.Tensor | None) -> int:
    """How many inputs a group has; 0 if the groups are of several sizes or their inputs no neighbours."""
    size, rest = divmod(inputs, groups)
    same = order is None or torch.equal(order.long(), torch.arange(inputs) // size)
    return size if not rest and same else 0


def groups_of(bits: int, inputs: int, groups: int, order: torch.Tensor | None) -> Groups:
    """What `grouped` returns for so many groups."""
    size = neighbours(inputs, groups, order)
    return GroupFormat(bits, size) if size else "groups of act-order are not executed"


def unpack(words: torch.Tensor, bits: int, order: tuple[int, ...] = ()) -> torch.Tensor:
    """The integers in words of 32 bits [rows, words] as uint8 [rows, words * 32 / bits], lowest bits first. `order`:
    the places within a word's integers that the first, second, and so on of its bits are for."""
    if 32 % bits:
        return _unpack_across(words, bits)
    count = 32 // bits
    shifts = torch.arange(count, dtype=torch.int32) * bits
    if order:
        shifts = shifts[torch.tensor(order).argsort()]
    integers = (words[..., None] >> shifts) & ((1 << bits) - 1)
    return integers.to(torch.uint8).reshape(len(words), -1)


def _unpack_across(words: torch.Tensor, bits: int) -> torch.Tensor:
    """The integers of `unpack` for bits that do not divide a word: 32 of them lie one after the other in `bits` words,
    some across two."""
    blocks = words.reshape(len(words), -1, bits).to(torch.int64) & 0xFFFFFFFF
    integers = torch.empty(*blocks.shape[:2], 32, dtype=torch.uint8)
    for i in range(32):
        word, shift = divmod(i * bits, 32)
        own = blocks[..., word] >> shift
        if shift + bits > 32:
            own = own | blocks[..., word + 1] << (32 - shift)
        integers[..., i] = own & ((1 << bits) - 1)
    return integers.flatten(1)
