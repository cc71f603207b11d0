"""How the weights of a checkpoint are stored, and what an engine says about how it keeps them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass

import torch


@dataclass(frozen=True, slots=True)
class Quantization:
    """What a checkpoint says of its quantized weights."""

    method: str = ""  # for people, such as `gptq, 4 bits in groups of 128`; empty: all weights are numbers
    weights: frozenset[str] = frozenset()  # their names
    refused: Mapping[str, str] = field(default_factory=dict)  # by name: why no backend executes it as it is stored


def describe_integers(bits: int, group: int) -> str:
    """Words for weights of `bits`, `group` inputs of which (0: all) share a scale."""
    return f"{bits} bits in groups of {group}" if group > 0 else f"{bits} bits with a scale for each output"


def describe_kept(
    quantization: Quantization, as_stored: Iterable[str], widened: Iterable[str], why: str, kept: str, size: int
) -> str:
    """One line about weights of `size` bytes in memory. `as_stored` and `widened` are the names of what this engine
    has. `why`: what widens all, or those for which the checkpoint has no reason. `kept`: as what numbers are kept."""
    memory = f"{size / 1e6:,.0f} MB in memory"
    stored = quantization.weights & set(as_stored)
    reasons = Counter(quantization.refused.get(name, why) for name in (quantization.weights & set(widened)) - stored)
    count = len(stored) + reasons.total()
    if not count:
        return f"{kept}, {memory}"
    every = "all" if not reasons or not stored else f"{len(stored)} of"
    what = f"{every} {count} quantized weights {'as stored' if stored else f'kept as {kept}'}"
    others = [f"{number} kept as {kept} ({reason})" for reason, number in reasons.most_common()]
    if not stored:
        what += f" ({'; '.join(reasons)})"
    parts = [what, *(others if stored else []), memory]
    return f"{quantization.method}: {', '.join(parts)}"


def tensor_bytes(*values: object) -> int:
    """The memory of all tensors in dataclasses, tuples and lists; what two share counts once."""
    sizes: dict[int, int] = {}
    _collect(values, sizes)
    return sum(sizes.values())


def _collect(value: object, sizes: dict[int, int]) -> None:
    if isinstance(value, torch.Tensor):
        if value.is_meta:
            return
        sizes[value.data_ptr()] = value.nbytes
    elif isinstance(value, list | tuple):
        for each in value:
            _collect(each, sizes)
    elif is_dataclass(value):
        for each in fields(value):
            _collect(getattr(value, each.name), sizes)
