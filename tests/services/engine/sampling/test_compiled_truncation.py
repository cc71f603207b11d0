"""What the compiled search keeps of a vocabulary is what the definition keeps, token for token."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
import torch

from services.engine.backends.cpu import build
from services.engine.backends.cpu.search import DRAW
from services.engine.sampling.logits_chunks import chunk_maxima
from services.engine.sampling.truncation import DeviceTruncation, Truncation, truncate
from services.requests import SamplingParams

KEPT = """
#include "search.h"
extern "C" int kept(const Draw* draw, int vocab, int blocks, int32_t* ids) {
    const Found found = Search(*draw, vocab, blocks).kept();
    std::copy_n(found.ids(), found.count(), ids);
    return found.count();
}
"""
SETTINGS = [
    SamplingParams(1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature in (0.7, 1.0, 3.0, 7e-9)
    for top_k in (0, 1, 40, 60, 300, 2000)
    for top_p in (0.0, 0.3, 0.95, 0.9985, 0.999999, 1.0)
    for min_p in (0.0, 1e-6, 0.05)
]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which(build.COMPILER) is None:
        pytest.skip(f"no {build.COMPILER}")
    folder = tmp_path_factory.mktemp("kept")
    (folder / "kept.cpp").write_text(KEPT)
    sources = [f"-I{build.SOURCE}", str(folder / "kept.cpp"), "-o", str(folder / "kept.so")]
    subprocess.run([build.COMPILER, *build.FLAGS, *sources], check=True)
    return ctypes.CDLL(str(folder / "kept.so"))


@pytest.mark.parametrize("vocab", [50, 29 * 53, 2048, 4096])
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 6.0])
def test_it_is_what_the_definition_keeps(kept: ctypes.CDLL, vocab: int, spread: float) -> None:
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
    limits = Truncation.of([settings], len(logits))
    scores = ((logits - logits.max()) / torch.from_numpy(limits.temperature))[None]
    truncate(
        scores, DeviceTruncation(*map(torch.from_numpy, limits.arrays())), int(limits.top_k[0]), settings.top_p < 1.0
    )
    ids: list[int] = scores[0].isfinite().nonzero().flatten().tolist()
    return ids


def ids_kept(library: ctypes.CDLL, logits: torch.Tensor, settings: SamplingParams) -> list[int]:
    limits, tops = Truncation.of([settings], len(logits)), chunk_maxima(logits).contiguous()
    draw = np.zeros(1, DRAW)
    draw["logits"], draw["maxima"], draw["best"] = logits.data_ptr(), tops.data_ptr(), tops.max().item()
    draw["temperature"], draw["lowest"] = limits.temperature, limits.lowest
    draw["top_k"], draw["top_p"] = limits.top_k, limits.top_p
    ids = np.empty(len(logits), np.int32)
    count = library.kept(ctypes.c_void_p(draw.ctypes.data), len(logits), len(tops), ctypes.c_void_p(ids.ctypes.data))
    found: list[int] = ids[:count].tolist()
    return found
