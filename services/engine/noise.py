"""Sampling noise as a pure function of (seed, choice, position, vocabulary id).

Integer arithmetic modulo 2**64 makes the bits: the same in any batch, in any process, on CPU and CUDA.
"""

from __future__ import annotations

import torch

_MASK = (1 << 64) - 1
# the increment and the two multipliers of SplitMix64 (Steele, Lea and Flood, 2014)
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key(seed: int, choice: int, position: int) -> int:
    """A 64-bit key of one draw: `position` is the index of the drawn token in prompt + output."""
    state = 0
    for word in (seed, choice, position):
        state = _mix((state ^ word) + _GOLDEN & _MASK)
    return state


def gumbel(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float32, of keys and vocabulary ids (int64, shapes that broadcast)."""
    uniform = _shift(_bits(keys, ids), 11).to(torch.float32) * 2.0**-53
    # log1p keeps the digits where they decide: a large value of noise comes from a small uniform
    exponential = torch.log1p(-uniform).neg_().clamp_(2.0**-54, 64.0)
    return exponential.log_().neg_()


def signed(number: int) -> int:
    """A 64-bit pattern as the int64 that torch holds."""
    return number - (1 << 64) if number >> 63 else number


def _bits(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """64 bits for each pair: the ids-th outputs of the SplitMix64 generators seeded with the keys."""
    state = (ids + 1) * signed(_GOLDEN) + keys
    state = (state ^ _shift(state, 30)) * signed(_FIRST)
    state = (state ^ _shift(state, 27)) * signed(_SECOND)
    return state ^ _shift(state, 31)


def _shift(values: torch.Tensor, by: int) -> torch.Tensor:
    """Shift right, filling with zeros (torch's shift fills with the sign)."""
    return (values >> by) & (_MASK >> by)


def _mix(state: int) -> int:
    """`_bits` in Python's integers."""
    state = (state ^ state >> 30) * _FIRST & _MASK
    state = (state ^ state >> 27) * _SECOND & _MASK
    return state ^ state >> 31
