"""Attention that is written out, against its definition, one score after another."""

from __future__ import annotations

import math

import pytest
import torch

from services.engine.backends.stock import sdpa as written
from services.engine.backends.stock.sdpa import Scoring, sdpa

HEADS, KV_HEADS, DIM, KEYS = 4, 2, 6, 11


def plain(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scoring: Scoring
) -> torch.Tensor:
    output = torch.zeros(*queries.shape[:3], values.shape[3])
    for n, head, token in torch.cartesian_prod(*map(torch.arange, queries.shape[:3])).tolist():
        own, kv = queries[n, head, token], head // (HEADS // KV_HEADS)
        weights = []
        for key in keys[n, kv]:
            score = float(own @ key) * (DIM**-0.5 if scoring.scale is None else scoring.scale)
            weights.append(math.exp(scoring.softcap * math.tanh(score / scoring.softcap) if scoring.softcap else score))
        weights = [weight * bool(shown) for weight, shown in zip(weights, mask[n, 0, token], strict=True)]
        sink = math.exp(float(scoring.sinks[head])) if scoring.sinks is not None else 0.0
        output[n, head, token] = torch.tensor(weights) @ values[n, kv] / (sum(weights) + sink)
    return output


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize(
    "scoring",
    [
        Scoring(),
        Scoring(scale=0.7),
        Scoring(softcap=1.5),
        Scoring(sinks=torch.tensor([0.5, -2.0, 3.0, 0.0])),
        Scoring(0.3, 2.0, torch.tensor([0.5, -2.0, 3.0, 0.0])),
    ],
)
@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_attention_is_what_it_is_defined_to_be(
    tokens: int, scoring: Scoring, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "WRITTEN_OUT", at_once)
    drawn = torch.Generator().manual_seed(tokens)
    queries = torch.randn(2, HEADS, tokens, DIM, generator=drawn)
    keys = torch.randn(2, KV_HEADS, KEYS, DIM, generator=drawn)
    values = torch.randn(2, KV_HEADS, KEYS, 3, generator=drawn)
    mask = torch.rand(2, 1, tokens, KEYS, generator=drawn) < 0.7
    mask[..., 0] = True
    found = sdpa(queries, keys, values, mask, scoring)
    assert torch.allclose(found, plain(queries, keys, values, mask, scoring), atol=1e-5)


def test_without_a_mask_it_is_causal() -> None:
    drawn = torch.Generator().manual_seed(3)
    queries = torch.randn(1, HEADS, KEYS, DIM, generator=drawn)
    keys, values = torch.randn(2, 1, KV_HEADS, KEYS, DIM, generator=drawn)
    causal = torch.ones(1, 1, KEYS, KEYS, dtype=torch.bool).tril()
    for scoring in (Scoring(), Scoring(softcap=2.0)):
        found = sdpa(queries, keys, values, None, scoring)
        assert torch.allclose(found, plain(queries, keys, values, causal, scoring), atol=1e-5)
