"""Sampling noise as a pure function of (seed, choice, position, vocabulary id).

The bits come from integer arithmetic modulo 2**64: they are the same in any batch, in any process, on CPU and CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

_MASK = (1 << 64) - 1
# the increment and the two multipliers of SplitMix64 (Steele, Lea and Flood, 2014)
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
UNIFORMS = 1 << 53  # how many values `uniform` has


def keys(seeds: Iterable[int], choices: Iterable[int], positions: Iterable[int]) -> npt.NDArray[np.int64]:
    """The keys [draws] of draws. A position is the index of the drawn token in prompt + output."""
    return keys_at(stems(seeds, choices), positions)


def stems(seeds: Iterable[int], choices: Iterable[int]) -> npt.NDArray[np.uint64]:
    """What the keys [draws] of the draws of requests have in common at all positions."""
    return _folded(_mix(_words(seeds) + np.uint64(_GOLDEN)), choices)


def keys_at(stems: npt.NDArray[np.uint64], positions: Iterable[int]) -> npt.NDArray[np.int64]:
    """The keys of draws at these positions."""
    return _folded(stems, positions).view(np.int64)


def _folded(state: npt.NDArray[np.uint64], words: Iterable[int]) -> npt.NDArray[np.uint64]:
    return _mix((state ^ _words(words)) + np.uint64(_GOLDEN))


def _words(words: Iterable[int]) -> npt.NDArray[np.uint64]:
    return np.array(list(words), dtype=np.uint64)


def gumbel(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float32, for int64 keys and vocabulary ids, which are broadcast."""
    return _noise(uniform(keys, ids).to(torch.float32))


def gumbel_of(keys: npt.NDArray[np.int64] | np.int64, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """`gumbel` for a CPU, where numpy starts operations faster than torch."""
    state = _mix(keys.view(np.uint64) + (ids + 1).view(np.uint64) * np.uint64(_GOLDEN))
    noise: npt.NDArray[np.float32] = _noise(torch.from_numpy((state >> np.uint64(11)).astype(np.float32))).numpy()
    return noise


def _noise(u: torch.Tensor) -> torch.Tensor:
    """The noise of uniforms, which are overwritten."""
    u.mul_(1.0 / UNIFORMS)
    # log1p keeps the digits that matter: large noise comes from a small uniform
    exponential = u.neg_().log1p_().neg_().clamp_(2.0**-54, 64.0)
    return exponential.log_().neg_()


def uniform(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Uniform integers below `UNIFORMS`. A smaller one gives larger noise, which is at most -log(u / UNIFORMS)."""
    return bits(keys, ids).bitwise_right_shift_(11).bitwise_and_(_MASK >> 11)


def bits(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """64 bits for each key and vocabulary id, as int64: the outputs of SplitMix64 generators seeded with the keys."""
    state = keys + (ids + 1).mul_(_signed(_GOLDEN))
    scratch = torch.empty_like(state)
    _fold(state, scratch, 30)
    _fold(state.mul_(_signed(_FIRST)), scratch, 27)
    _fold(state.mul_(_signed(_SECOND)), scratch, 31)
    return state


def _fold(state: torch.Tensor, scratch: torch.Tensor, by: int) -> None:
    """state ^= state >> by, filling with zeros (torch's shift fills with the sign)."""
    torch.bitwise_right_shift(state, by, out=scratch)
    state.bitwise_xor_(scratch.bitwise_and_(_MASK >> by))


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """What `bits` does to its state."""
    state = (state ^ state >> np.uint64(30)) * np.uint64(_FIRST)
    state = (state ^ state >> np.uint64(27)) * np.uint64(_SECOND)
    return state ^ state >> np.uint64(31)


def _signed(number: int) -> int:
    """A 64-bit pattern as torch's int64."""
    return number - (1 << 64) if number >> 63 else number
