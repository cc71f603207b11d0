"""Truncation: which tokens min_p, top_k and top_p leave in a draw.

They apply in this order. min_p keeps tokens that are at least this share as likely as the likeliest one; top_k keeps
the k likeliest (0: all); top_p keeps the fewest likeliest ones whose share of what is left reaches p. Tokens of equal
scores stay together.

Here is the formula for the batched sampler. `backends/cpu/kernels/search.h` has it for a CPU, `triton_draw.py` for
CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from services.requests import SamplingParams

# Weights are integers, so that their sums are the same in any order and any batch. Sums are below 2^53, since
# kernels/nucleus.h adds them as doubles. WHOLE is the weight of the likeliest token.
WHOLE_BITS = 34
MOST_TOKENS = 1 << 53 - WHOLE_BITS  # of a vocabulary
WHOLE = float(1 << WHOLE_BITS)
COLDEST = 2.0**-126  # the smallest temperature that float32 divides by without losing digits

LOWEST = -32.0  # a token of a lower score weighs nothing either
LOG2_E = 1.44269502  # in float32, as are the next
POWERS = (0.00132647273, 0.00967151299, 0.0555073358, 0.240222424, 0.693147004, 1.0)  # 2^x for |x| <= 1/2, to 2e-7


def weights(scores: torch.Tensor) -> torch.Tensor:
    """The weights of tokens with these scores, which are float32 and at most 0: e^score * WHOLE, int64.

    Each operation rounds by itself, so that all implementations have the same bits.
    """
    x = scores.clamp(min=LOWEST).mul_(LOG2_E)
    whole = x.round()
    rest = x.sub_(whole)
    power = rest * POWERS[0]
    for factor in POWERS[1:-1]:
        power.add_(factor).mul_(rest)
    return power.add_(POWERS[-1]).mul_(_two_to(whole.add_(WHOLE_BITS))).long()


def _two_to(whole: torch.Tensor) -> torch.Tensor:
    """2^whole exactly, for whole numbers whose power is a normal number."""
    return (whole.int() + 127 << 23).view(torch.float32)


class DeviceTruncation(NamedTuple):
    """`Truncation` as tensors on a device, in the same order."""

    temperature: torch.Tensor
    lowest: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor

    def part(self, draws: slice) -> DeviceTruncation:
        return DeviceTruncation(*(tensor[draws] for tensor in self))


class Truncation(NamedTuple):
    """The settings of draws, an array [draws] each."""

    temperature: npt.NDArray[np.float32]
    lowest: npt.NDArray[np.float32]  # the logarithm of min_p
    top_k: npt.NDArray[np.int64]  # 0: all
    top_p: npt.NDArray[np.float64]

    @classmethod
    def from_params(cls, settings: Sequence[SamplingParams], vocab_size: int) -> Truncation:
        return cls(
            np.array([max(s.temperature, COLDEST) for s in settings], np.float32),
            np.array([math.log(s.min_p) if s.min_p > 0.0 else -math.inf for s in settings], np.float32),
            np.array([s.top_k if s.top_k < vocab_size else 0 for s in settings], np.int64),
            np.array([s.top_p for s in settings], np.float64),
        )


def truncate(scores: torch.Tensor, limits: DeviceTruncation, deepest: int, nucleus: bool) -> None:
    """Set the scores [requests, vocab] of dropped tokens to -inf, in place. The maximum of each row is 0.

    `deepest` is the largest `top_k`; `nucleus` is whether any `top_p` is below 1.
    """
    _drop_below(scores, limits.lowest)
    if deepest:
        kth = scores.topk(deepest).values.gather(1, (limits.top_k - 1).clamp(min=0)[:, None])[:, 0]
        _drop_below(scores, kth.masked_fill(limits.top_k == 0, -torch.inf))
    if nucleus:
        likeliest = scores.sort(dim=-1, descending=True).values
        held = weights(likeliest).cumsum(dim=-1)
        goal = (limits.top_p * held[:, -1]).long()
        reached = (held < goal[:, None]).sum(dim=-1, keepdim=True).clamp(max=scores.shape[1] - 1)
        _drop_below(scores, likeliest.gather(1, reached)[:, 0].masked_fill(limits.top_p >= 1.0, -torch.inf))


def _drop_below(scores: torch.Tensor, limits: torch.Tensor) -> None:
    scores.masked_fill_(scores < limits[:, None], -torch.inf)
