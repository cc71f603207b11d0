"""The blocks of a GGUF file's quantised weights, which a converted folder keeps in place of their numbers.

A backend that executes weights as they are stored reads a third to a half as many bytes as with bfloat16; others widen
them when they are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# the types that engine/weights/gguf.py reads
KINDS = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"})
NUMBERS = frozenset({"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8"})  # types that are not quantised


def in_order(data: Any, numbers: torch.Tensor, weight: torch.Tensor, heads: tuple[int, int]) -> torch.Tensor | None:
    """The blocks `data` of a GGUFReader's tensor with their rows in the order of `weight`, the converted numbers; None
    if those are others. llama.cpp interleaves the rows of the two halves of a head that are rotated together, in some
    families. `numbers`: those of the blocks. `heads`: how many there are of queries, and of keys."""
    import torch

    if numbers.shape != weight.shape or weight.ndim != 2:
        return None
    rows, rounded = torch.from_numpy(data.copy()), numbers.to(weight.dtype)
    for count in heads:
        if len(rows) % (2 * count) == 0:
            order = torch.arange(len(rows)).view(count, -1, 2).transpose(1, 2).reshape(-1)
            if torch.equal(rounded[order], weight):
                return rows[order]
    return None
