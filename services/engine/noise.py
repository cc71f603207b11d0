"""Sampling noise as a pure function of (seed, choice, position, vocabulary id).

Integer arithmetic modulo 2**64 makes the bits: the same in any batch, in any process, on CPU and CUDA.
"""

from __future__ import annotations

import torch

_MASK = (1 << 64) - 1
# the increment and the two multipliers of SplitMix64 (Steele, Lea and Flood, 2014)
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key(seed: int, choice: int, position: int) -> int:
    """The key of one draw, 64 bits as an int64; `position` is the index of the drawn token in prompt + output."""
    state = 0
    for word in (seed, choice, position):
        state = _mix((state ^ word) + _GOLDEN & _MASK)
    return _signed(state)


def gumbel(keys: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Standard Gumbel noise [draws, vocab_size], float32, of `keys` [draws]."""
    state = bits(keys, vocab_size)
    uniform = state.bitwise_right_shift_(11).bitwise_and_(_MASK >> 11).to(torch.float32).mul_(2.0**-53)
    # log1p keeps the digits where they decide: a large value of noise comes from a small uniform
    exponential = uniform.neg_().log1p_().neg_().clamp_(2.0**-54, 64.0)
    return exponential.log_().neg_()


def bits(keys: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """64 bits for each key and vocabulary id, as int64: the outputs of SplitMix64 generators seeded with the keys."""
    ids = torch.arange(1, vocab_size + 1, device=keys.device)
    state = keys[:, None] + ids.mul_(_signed(_GOLDEN))
    scratch = torch.empty_like(state)
    _fold(state, scratch, 30)
    _fold(state.mul_(_signed(_FIRST)), scratch, 27)
    _fold(state.mul_(_signed(_SECOND)), scratch, 31)
    return state


def _fold(state: torch.Tensor, scratch: torch.Tensor, by: int) -> None:
    """state ^= state >> by, filling with zeros (torch's shift fills with the sign)."""
    torch.bitwise_right_shift(state, by, out=scratch)
    state.bitwise_xor_(scratch.bitwise_and_(_MASK >> by))


def _mix(state: int) -> int:
    """What `bits` does to its state, in Python's integers."""
    state = (state ^ state >> 30) * _FIRST & _MASK
    state = (state ^ state >> 27) * _SECOND & _MASK
    return state ^ state >> 31


def _signed(number: int) -> int:
    """A 64-bit pattern as the int64 that torch holds."""
    return number - (1 << 64) if number >> 63 else number
