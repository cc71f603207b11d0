"""The blocks of GGUF files as QuantizedWeights. Their layouts are those of ggml's `ggml-common.h`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from services.engine.weights.quantized import GroupFormat, QuantizedWeight, Values

Factors = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor
]  # codes [blocks, numbers], scales and offsets [blocks, groups]


def read_blocks(kind: str, blocks: torch.Tensor) -> QuantizedWeight:
    """The weight in `blocks` [outputs, bytes of a row], uint8, of ggml's type `kind`."""
    form, rows = FORMATS[kind], len(blocks)
    codes, scales, offsets = form.read(blocks.reshape(-1, form.block))
    scales, offsets = (each.reshape(rows, -1).contiguous() for each in (scales, offsets))
    each = blocks.reshape(-1, form.block)
    supers = tuple(_halves(each[:, at : at + 2]).reshape(rows, -1) * times for at, times in form.supers)
    return QuantizedWeight(codes.reshape(rows, -1), scales, offsets, *form.groups, supers)


def _q4_0(blocks: torch.Tensor) -> Factors:
    scales = _halves(blocks[:, :2])
    return _nibbles(blocks[:, 2:]), scales, scales * -8


def _q4_1(blocks: torch.Tensor) -> Factors:
    return _nibbles(blocks[:, 4:]), _halves(blocks[:, :2]), _halves(blocks[:, 2:4])


def _q5_0(blocks: torch.Tensor) -> Factors:
    scales = _halves(blocks[:, :2])
    return _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), scales, scales * -16


def _q5_1(blocks: torch.Tensor) -> Factors:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return codes, _halves(blocks[:, :2]), _halves(blocks[:, 2:4])


def _q8_0(blocks: torch.Tensor) -> Factors:
    scales = _halves(blocks[:, :2])
    return blocks[:, 2:] ^ 128, scales, scales * -128


def _q4_k(blocks: torch.Tensor) -> Factors:
    return (_halves_of_64(blocks[:, 16:]), *_k_factors(blocks))


def _q5_k(blocks: torch.Tensor) -> Factors:
    codes = _halves_of_64(blocks[:, 48:]).view(torch.int32).view(-1, 8, 8)
    bits = _words(blocks[:, None, 16:48])
    codes |= (bits >> torch.arange(8, dtype=torch.int32)[:, None] & 0x01010101) << 4
    return (codes.view(torch.uint8).view(-1, 256), *_k_factors(blocks))


def _q6_k(blocks: torch.Tensor) -> Factors:
    codes = _nibbles(blocks[:, :128].reshape(-1, 64)).view(torch.int32).view(-1, 2, 4, 8)
    high = _words(blocks[:, 128:192]).view(-1, 2, 1, 8)
    codes |= (high >> torch.tensor([[0], [2], [4], [6]], dtype=torch.int32) & 0x03030303) << 4
    scales = blocks[:, 192:208].view(torch.int8).to(torch.float32) * _halves(blocks[:, 208:])
    return codes.view(torch.uint8).view(-1, 256), scales, scales * -32


def _iq4_nl(blocks: torch.Tensor) -> Factors:
    scales = _halves(blocks[:, :2])
    return _nibbles(blocks[:, 2:]), scales, torch.zeros_like(scales)


def _iq4_xs(blocks: torch.Tensor) -> Factors:
    """Six bits of each scale: four in nibbles, two in a word."""
    low = blocks[:, 4:8, None] >> torch.tensor([0, 4], dtype=torch.uint8) & 15
    high = blocks[:, 2:4, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8) & 3
    scales = (low.view(-1, 8) | high.reshape(-1, 8) << 4).to(torch.float32).sub_(32) * _halves(blocks[:, :2])
    codes = _nibbles(blocks[:, 8:].reshape(-1, 16)).view(-1, 256)
    return codes, scales, torch.zeros_like(scales)


def _nibbles(quants: torch.Tensor) -> torch.Tensor:
    """The lower halves of all bytes of a block, then the upper ones."""
    words = _words(quants)
    codes = torch.empty(len(words), 2, words.shape[1], dtype=torch.int32)
    torch.bitwise_and(words, 0x0F0F0F0F, out=codes[:, 0])
    torch.bitwise_and(words >> 4, 0x0F0F0F0F, out=codes[:, 1])
    return codes.view(torch.uint8).view(len(words), -1)


def _halves_of_64(quants: torch.Tensor) -> torch.Tensor:
    """The lower halves and then the upper ones of each 32 bytes of a block."""
    return _nibbles(quants.reshape(-1, 32)).view(-1, 256)


def _fifth_bits(quants: torch.Tensor) -> torch.Tensor:
    bits = quants[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.reshape(-1, 32) << 4


def _halves(raw: torch.Tensor) -> torch.Tensor:
    return raw.contiguous().view(torch.float16).to(torch.float32)


def _words(part: torch.Tensor) -> torch.Tensor:
    """Four bytes of each block as a number: torch shifts single bytes slowly. A copy, since what is contiguous may have
    strides that no view takes."""
    return part.clone(memory_format=torch.contiguous_format).view(torch.int32)


def _k_factors(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales and offsets of a block's eight groups: six bits each, times a float16."""
    first, second, third = _words(blocks[:, 4:16]).unbind(1)
    scales, least = (
        torch.stack([low & 0x3F3F3F3F, high & 0x0F0F0F0F | low >> 2 & 0x30303030], 1).view(torch.uint8)
        for low, high in ((first, third), (second, third >> 4))
    )
    return scales * _halves(blocks[:, :2]), -(least * _halves(blocks[:, 2:4]))


class BlockFormat(NamedTuple):
    groups: GroupFormat
    block: int  # bytes
    read: Callable[[torch.Tensor], Factors]  # blocks [blocks, bytes]
    # of scales, and of offsets: where the float16 lies in a block that is multiplied by integers, and a factor of it
    supers: tuple[tuple[int, int], ...] = ()


# by ggml's name
FORMATS = {
    "Q4_0": BlockFormat(GroupFormat(4, 32), 18, _q4_0),
    "Q4_1": BlockFormat(GroupFormat(4, 32), 20, _q4_1),
    "Q5_0": BlockFormat(GroupFormat(5, 32), 22, _q5_0),
    "Q5_1": BlockFormat(GroupFormat(5, 32), 24, _q5_1),
    "Q8_0": BlockFormat(GroupFormat(8, 32), 34, _q8_0),
    "Q4_K": BlockFormat(GroupFormat(4, 32), 144, _q4_k, ((0, 1), (2, -1))),
    "Q5_K": BlockFormat(GroupFormat(5, 32), 176, _q5_k, ((0, 1), (2, -1))),
    "Q6_K": BlockFormat(GroupFormat(6, 16), 210, _q6_k, ((208, 1), (208, -32))),
    "IQ4_NL": BlockFormat(GroupFormat(4, 32, Values.IQ4_NL), 18, _iq4_nl),
    "IQ4_XS": BlockFormat(GroupFormat(4, 32, Values.IQ4_NL), 136, _iq4_xs, ((0, 1),)),
}
