"""min_p, top_k and top_p: `truncate` against plain formulas over sorted lists, and the compiled search against it."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess

import numpy as np
import pytest
import torch
from marked import full

from services.engine.backends.cpu import build
from services.engine.sampling.search import DRAW
from services.engine.sampling.truncation import DeviceTruncation, Truncation, truncate
from services.engine.sampling.whole_rows import chunk_maxima
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


KEPT = """
#include "search.h"
extern "C" int kept(const Draw* draw, int vocab, int32_t* ids) {
    const Search search(*draw, vocab);
    int count = 0;
    search.each_from(search.limit(), [&](int id, Vector, uint32_t bits) {
        for (; bits; bits &= bits - 1) ids[count++] = id + std::countr_zero(bits);
    });
    return count;
}
"""
SETTINGS = [
    SamplingParams(1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature in (0.7, 1.0, 3.0, 7e-9)
    for top_k in (0, 1, 40, 60, 300, 2000)
    for top_p in (0.0, 0.3, 0.95, 0.9985, 0.999999, 1.0)
    for min_p in (0.0, 1e-6, 0.05)
]


def keep_all(scores: torch.Tensor, settings: list[SamplingParams]) -> None:
    """Truncate whole vocabularies, all requests at once."""
    of = Truncation.from_params(settings, scores.shape[1])
    truncate(scores, DeviceTruncation(*map(torch.from_numpy, of)), int(of.top_k.max()), bool((of.top_p < 1.0).any()))


@pytest.mark.parametrize("together", [True, False])
def test_kept_tokens_are_those_of_the_formulas(together: bool) -> None:
    """With all settings in one batch and each alone."""
    scores, expected = drawn_scores()
    parts = [slice(0, len(CASES))] if together else [slice(i, i + 1) for i in range(len(CASES))]
    for part in parts:
        keep_all(scores[part], CASES[part])
    assert [set(row.isfinite().nonzero().flatten().tolist()) for row in scores] == expected


def drawn_scores() -> tuple[torch.Tensor, list[set[int]]]:
    """Scores [cases, 300], the largest of each 0, and which stay by the formulas."""
    logits = torch.randn(len(CASES), 300, generator=torch.Generator().manual_seed(1)) * 2
    scores = logits - logits.max(dim=-1, keepdim=True).values
    return scores, [kept_by_formula(row.double().tolist(), s) for row, s in zip(scores, CASES, strict=True)]


def test_equal_scores_stay_together() -> None:
    scores = torch.tensor([[0.0, -1.0, -1.0, -2.0]])
    keep_all(scores, [settings(top_k=2)])
    assert scores.isfinite().tolist() == [[True, True, True, False]]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which(build.COMPILER) is None:
        pytest.skip(f"no {build.COMPILER}")
    folder = tmp_path_factory.mktemp("kept")
    (folder / "kept.cpp").write_text(KEPT)
    sources = [f"-I{build.SOURCE}", str(folder / "kept.cpp"), "-o", str(folder / "kept.so")]
    subprocess.run([build.COMPILER, *build.FLAGS, *sources], check=True)
    return ctypes.CDLL(str(folder / "kept.so"))


@pytest.mark.parametrize("vocab", [50, 29 * 53, 20_011, *full([2048, 4096])])
@pytest.mark.parametrize("spread", [0.0, 3.0, 6.0, *full([0.5])])
def test_the_compiled_search_keeps_the_same(kept: ctypes.CDLL, vocab: int, spread: float) -> None:
    """Also if some kept tokens are below the scores that are searched first."""
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(vocab)) * spread
    logits[vocab // 3] += spread
    logits[::7] = logits[::7].round()
    for one in SETTINGS:
        assert ids_kept(kept, logits, one) == expected(logits, one), one


def test_many_that_weigh_next_to_nothing_are_weighed(kept: ctypes.CDLL) -> None:
    """So cold that the next smaller logit has a score of -17."""
    logits = torch.full((32_000,), 1.5).nextafter(torch.tensor(0.0))
    logits[0] = 1.5
    for top_p in (0.9975, 0.998, 0.9985, 0.9999):
        one = SamplingParams(1, temperature=7.14e-9, top_p=top_p)
        assert ids_kept(kept, logits, one) == expected(logits, one), one


def expected(logits: torch.Tensor, settings: SamplingParams) -> list[int]:
    temperature = torch.from_numpy(Truncation.from_params([settings], len(logits)).temperature)
    scores = ((logits - logits.max()) / temperature)[None]
    keep_all(scores, [settings])
    ids: list[int] = scores[0].isfinite().nonzero().flatten().tolist()
    return ids


def ids_kept(library: ctypes.CDLL, logits: torch.Tensor, settings: SamplingParams) -> list[int]:
    limits, tops = Truncation.from_params([settings], len(logits)), chunk_maxima(logits[None])[0]
    draw = np.zeros(1, DRAW)
    draw["logits"], draw["maxima"], draw["best"] = logits.data_ptr(), tops.data_ptr(), tops.max().item()
    draw["temperature"], draw["lowest"] = limits.temperature, limits.lowest
    draw["top_k"], draw["top_p"] = limits.top_k, limits.top_p
    ids = np.empty(len(logits), np.int32)
    count = library.kept(ctypes.c_void_p(draw.ctypes.data), len(logits), ctypes.c_void_p(ids.ctypes.data))
    found: list[int] = ids[:count].tolist()
    return found
