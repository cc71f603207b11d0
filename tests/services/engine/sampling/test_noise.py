"""Noise is a pure function of (seed, choice, position, vocabulary id), and it is noise."""

from __future__ import annotations

import math

import pytest
import torch

from services.engine.sampling.noise import UNIFORMS, bits, gumbel, gumbel_of, keys, uniform

MASK = (1 << 64) - 1


def drawn_keys(count: int) -> torch.Tensor:
    """[count, 1]: the keys of one seed's first positions."""
    return torch.from_numpy(keys([7] * count, [0] * count, range(count)))[:, None]


def splitmix(seed: int, n: int) -> int:
    """The n-th output (from 1) of SplitMix64, as published."""
    z = (seed + n * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_bits_are_splitmix64() -> None:
    assert splitmix(0, 1) == 0xE220A8397B1DCDAF  # the published first output of seed 0
    seeds = [0, 1, -1, -(1 << 63), (1 << 63) - 1, 123456789]
    drawn = bits(torch.tensor(seeds)[:, None], torch.arange(500))
    expected = [[splitmix(k & MASK, n) for n in range(1, 501)] for k in seeds]
    assert [[b & MASK for b in row] for row in drawn.tolist()] == expected


def test_keys_differ_in_each_argument() -> None:
    words = [(seed, choice, position) for seed in (0, 1, MASK) for choice in range(8) for position in range(100)]
    assert len(set(keys(*zip(*words, strict=True)).tolist())) == len(words)


def test_keys_are_chained_splitmix64() -> None:
    def key(*words: int) -> int:
        state = 0
        for word in words:
            state = splitmix(state ^ word, 1)
        return state

    words = [(0, 0, 0), (MASK, 3, 100), (1 << 63, 0, 7)]
    assert [k & MASK for k in keys(*zip(*words, strict=True)).tolist()] == [key(*one) for one in words]
    assert keys([], [], []).tolist() == []


def test_gumbel_quantiles() -> None:
    """The distribution function exp(-exp(-x)) at ten points, within five standard deviations of 200,000 draws."""
    drawn = gumbel(drawn_keys(200), torch.arange(1000)).flatten().double()
    for percent in range(5, 100, 10):
        p = percent / 100
        share = (drawn <= -math.log(-math.log(p))).double().mean().item()
        assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / drawn.numel())


def test_neighbouring_positions_and_ids_are_unrelated() -> None:
    drawn = gumbel(drawn_keys(300), torch.arange(300)).double()
    for one, other in ((drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1])):
        correlation = torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].item()
        assert abs(correlation) < 5 / math.sqrt(one.numel())


def test_gumbel_is_finite_at_the_ends() -> None:
    drawn = gumbel(drawn_keys(50), torch.arange(50_000))
    assert drawn.isfinite().all()
    assert drawn.max() > 12  # log(2.5 million draws) is 14.7


def test_the_noise_of_an_id_is_the_same_among_others() -> None:
    """Whole vocabularies, single ids and ids of several draws side by side have the same noise, bit for bit."""
    secret, vocab = drawn_keys(8), 5003
    whole = gumbel(secret, torch.arange(vocab))
    generator = torch.Generator().manual_seed(1)
    for count in (1, 2, 3, 7, 15, 16, 17, 33, 1000, 5000):
        draws = torch.randint(8, (count,), generator=generator)
        ids = torch.randint(vocab, (count,), generator=generator)
        assert torch.equal(gumbel(secret[draws, 0], ids), whole[draws, ids])
        assert gumbel_of(secret[draws, 0].numpy(), ids.numpy()).tolist() == whole[draws, ids].tolist()


def test_noise_is_bounded_by_its_uniform() -> None:
    secret, ids = drawn_keys(50), torch.arange(50_000)
    noise, u = gumbel(secret, ids).double(), uniform(secret, ids).double() / UNIFORMS
    assert (noise <= -u.log() + 1e-5).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_makes_the_same_bits() -> None:
    secret, ids = drawn_keys(10), torch.arange(50_000)
    assert torch.equal(bits(secret.cuda(), ids.cuda()).cpu(), bits(secret, ids))
