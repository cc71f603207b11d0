"""min_p, top_k and top_p against plain formulas over sorted lists."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from services.engine.sampling import candidates
from services.engine.sampling.logits_chunks import LogitsChunks, chunk_maxima
from services.engine.sampling.truncation import DeviceTruncation, Truncation, truncate
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


def keep_all(scores: torch.Tensor, settings: list[SamplingParams]) -> None:
    """Truncate whole vocabularies, all requests at once."""
    of = Truncation.of(settings, scores.shape[1])
    truncate(
        scores, DeviceTruncation(*map(torch.from_numpy, of.arrays())), int(of.top_k.max()), bool((of.top_p < 1.0).any())
    )


@pytest.mark.parametrize("together", [True, False])
def test_kept_tokens_are_those_of_the_formulas(together: bool) -> None:
    """With all settings in one batch and each alone."""
    scores, expected = drawn_scores()
    parts = [slice(0, len(CASES))] if together else [slice(i, i + 1) for i in range(len(CASES))]
    for part in parts:
        keep_all(scores[part], CASES[part])
    assert [set(row.isfinite().nonzero().flatten().tolist()) for row in scores] == expected


@pytest.mark.parametrize("deep", [0.5, 100.0], ids=["all-of-them", "near-ones"])
def test_candidates_are_those_of_the_formulas(deep: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the nucleus is among the scores that are searched first."""
    monkeypatch.setattr(candidates, "NUCLEUS", np.float32(deep))
    scores, expected = drawn_scores()
    for row, s, ids in zip(scores, CASES, expected, strict=True):
        limits = Truncation.of([s], len(row)).one(0)
        blocks = LogitsChunks(row.numpy(), chunk_maxima(row).numpy())
        found, with_scores = candidates.find(blocks, limits, np.int64(5))
        assert set(found.tolist()) == ids or limits.none
        assert with_scores.tolist() == row[torch.from_numpy(found)].tolist()


def drawn_scores() -> tuple[torch.Tensor, list[set[int]]]:
    """Scores [cases, 300], the largest of each 0, and which stay by the formulas."""
    logits = torch.randn(len(CASES), 300, generator=torch.Generator().manual_seed(1)) * 2
    scores = logits - logits.max(dim=-1, keepdim=True).values
    return scores, [kept_by_formula(row.double().tolist(), s) for row, s in zip(scores, CASES, strict=True)]


def test_equal_scores_stay_together() -> None:
    scores = torch.tensor([[0.0, -1.0, -1.0, -2.0]])
    row = scores[0].clone()
    blocks = LogitsChunks(row.numpy(), chunk_maxima(row).numpy())
    keep_all(scores, [settings(top_k=2)])
    assert scores.isfinite().tolist() == [[True, True, True, False]]
    limits = Truncation.of([settings(top_k=2)], 4).one(0)
    assert candidates.find(blocks, limits, np.int64(5))[0].tolist() == [0, 1, 2]
