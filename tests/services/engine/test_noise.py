"""Noise is a pure function of (seed, choice, position, vocabulary id), and it is noise."""

from __future__ import annotations

import math

import pytest
import torch

from services.engine.noise import bits, gumbel, key

MASK = (1 << 64) - 1


def splitmix(seed: int, n: int) -> int:
    """The n-th output (from 1) of SplitMix64, as published."""
    z = (seed + n * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_bits_are_splitmix64() -> None:
    assert splitmix(0, 1) == 0xE220A8397B1DCDAF  # the published first output of seed 0
    keys = [0, 1, -1, -(1 << 63), (1 << 63) - 1, 123456789]
    drawn = bits(torch.tensor(keys), 500)
    expected = [[splitmix(k & MASK, n) for n in range(1, 501)] for k in keys]
    assert [[b & MASK for b in row] for row in drawn.tolist()] == expected


def test_keys_differ_in_each_argument() -> None:
    keys = {key(seed, choice, position) for seed in (0, 1, MASK) for choice in range(8) for position in range(100)}
    assert len(keys) == 3 * 8 * 100
    assert all(-(1 << 63) <= k < 1 << 63 for k in keys)


def test_gumbel_quantiles() -> None:
    """The distribution function exp(-exp(-x)) at ten points, within five standard deviations of 200,000 draws."""
    drawn = gumbel(torch.tensor([key(7, 0, position) for position in range(200)]), 1000).flatten().double()
    for percent in range(5, 100, 10):
        p = percent / 100
        share = (drawn <= -math.log(-math.log(p))).double().mean().item()
        assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / drawn.numel())


def test_neighbouring_positions_and_ids_are_unrelated() -> None:
    drawn = gumbel(torch.tensor([key(7, 0, position) for position in range(300)]), 300).double()
    for one, other in ((drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1])):
        correlation = torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].item()
        assert abs(correlation) < 5 / math.sqrt(one.numel())


def test_gumbel_is_finite_at_the_ends() -> None:
    drawn = gumbel(torch.tensor([key(seed, 0, 0) for seed in range(50)]), 50_000)
    assert drawn.isfinite().all()
    assert drawn.max() > 12  # log(2.5 million draws) is 14.7


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_makes_the_same_bits() -> None:
    keys = torch.tensor([key(seed, 1, 2) for seed in range(10)])
    assert torch.equal(bits(keys.cuda(), 50_000).cpu(), bits(keys, 50_000))
