"""min_p, top_k and top_p against plain formulas over sorted lists."""

from __future__ import annotations

import math

import pytest
import torch

from services.engine import truncation
from services.requests import SamplingParams


def kept_by_formula(scores: list[float], s: SamplingParams) -> set[int]:
    """The ids that stay, one filter after the other."""
    ids = sorted(range(len(scores)), key=lambda i: -scores[i])
    weight = {i: math.exp(scores[i]) for i in ids}
    ids = [i for i in ids if weight[i] >= s.min_p * weight[ids[0]]]
    ids = ids[: s.top_k or None]
    if s.top_p >= 1.0:
        return set(ids)
    total, held = sum(weight[i] for i in ids), 0.0
    for count, i in enumerate(ids, start=1):
        held += weight[i]
        if held >= s.top_p * total:
            return set(ids[:count])
    return set(ids)


def settings(**fields: float) -> SamplingParams:
    return SamplingParams(max_new_tokens=1, **fields)  # type: ignore[arg-type]


CASES = [
    settings(),
    settings(top_k=1),
    settings(top_k=7),
    settings(top_k=10_000),
    settings(top_p=0.5),
    settings(top_p=0.999),
    settings(top_p=0.0),
    settings(min_p=0.02),
    settings(min_p=1.0),
    settings(top_k=20, top_p=0.8, min_p=0.01),
    settings(top_k=5, top_p=0.99),
]


@pytest.mark.parametrize("likeliest", [4, 1024], ids=["whole-sort", "likeliest"])
@pytest.mark.parametrize("together", [True, False])
def test_kept_tokens_are_those_of_the_formulas(likeliest: int, together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all settings in one batch and each alone, whether or not the likeliest hold enough."""
    monkeypatch.setattr(truncation, "LIKELIEST", likeliest)
    logits = torch.randn(len(CASES), 300, generator=torch.Generator().manual_seed(1)) * 2
    scores = logits - logits.max(dim=-1, keepdim=True).values
    expected = [kept_by_formula(row.double().tolist(), s) for row, s in zip(scores, CASES, strict=True)]
    parts = [slice(0, len(CASES))] if together else [slice(i, i + 1) for i in range(len(CASES))]
    for part in parts:
        truncation.truncate(scores[part], CASES[part])
    assert [set(row.isfinite().nonzero().flatten().tolist()) for row in scores] == expected


def test_equal_scores_stay_together() -> None:
    scores = torch.tensor([[0.0, -1.0, -1.0, -2.0]])
    truncation.truncate(scores, [settings(top_k=2)])
    assert scores.isfinite().tolist() == [[True, True, True, False]]
