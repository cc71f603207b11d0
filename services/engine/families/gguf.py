"""The blocks of GGUF files as QuantizedWeights. Their layouts are those of ggml's `ggml-common.h`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from services.engine.families.quantized import QuantizedWeight

Factors = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor
]  # codes [blocks, numbers], scales and offsets [blocks, groups]


def read_blocks(kind: str, blocks: torch.Tensor) -> QuantizedWeight:
    """The weight in `blocks` [outputs, bytes of a row], uint8, of ggml's type `kind`."""
    bits, group, size, read = FORMATS[kind]
    codes, scales, offsets = read(blocks.reshape(-1, size))
    rows = len(blocks)
    return QuantizedWeight(
        codes.reshape(rows, -1),
        scales.reshape(rows, -1).contiguous(),
        offsets.reshape(rows, -1).contiguous(),
        bits,
        group,
    )


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
    bits = blocks[:, None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1
    return (_halves_of_64(blocks[:, 48:]) | bits.reshape(-1, 256) << 4, *_k_factors(blocks))


def _q6_k(blocks: torch.Tensor) -> Factors:
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> torch.tensor([[0], [4]], dtype=torch.uint8) & 15
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> torch.tensor([[0], [2], [4], [6]], dtype=torch.uint8) & 3
    codes = low.reshape(-1, 2, 4, 32) | high << 4
    scales = blocks[:, 192:208].view(torch.int8).to(torch.float32) * _halves(blocks[:, 208:])
    return codes.reshape(-1, 256), scales, scales * -32


def _nibbles(quants: torch.Tensor) -> torch.Tensor:
    """The lower halves of all bytes of a block, then the upper ones."""
    words = quants.contiguous().view(torch.int32)  # four bytes at once: torch shifts single bytes slowly
    codes = torch.empty(len(words), 2, words.shape[1], dtype=torch.int32)
    torch.bitwise_and(words, 0x0F0F0F0F, out=codes[:, 0])
    torch.bitwise_and(words >> 4, 0x0F0F0F0F, out=codes[:, 1])
    return codes.view(torch.uint8).view(len(words), -1)


def _halves_of_64(quants: torch.Tensor) -> torch.Tensor:
    """For each 32 bytes, the same."""
    return _nibbles(quants.reshape(-1, 32)).view(-1, 256)


def _fifth_bits(quants: torch.Tensor) -> torch.Tensor:
    bits = quants[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.reshape(-1, 32) << 4


def _halves(raw: torch.Tensor) -> torch.Tensor:
    return raw.contiguous().view(torch.float16).to(torch.float32)


def _k_factors(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales and offsets of a block's eight groups: six bits each, times a float16."""
    packed = blocks[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([first & 63, third & 15 | first >> 6 << 4], dim=1)
    least = torch.cat([second & 63, third >> 4 | second >> 6 << 4], dim=1)
    return scales * _halves(blocks[:, :2]), -(least * _halves(blocks[:, 2:4]))


# by ggml's name: bits, inputs of a group, bytes of a block, and how a block is read
FORMATS: dict[str, tuple[int, int, int, Callable[[torch.Tensor], Factors]]] = {
    "Q4_0": (4, 32, 18, _q4_0),
    "Q4_1": (4, 32, 20, _q4_1),
    "Q5_0": (5, 32, 22, _q5_0),
    "Q5_1": (5, 32, 24, _q5_1),
    "Q8_0": (8, 32, 34, _q8_0),
    "Q4_K": (4, 32, 144, _q4_k),
    "Q5_K": (5, 32, 176, _q5_k),
    "Q6_K": (6, 16, 210, _q6_k),
}
