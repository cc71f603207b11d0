"""The compiled search for contenders, once for all tests."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from services.engine.blocks import maxima
from services.engine.contenders import PlainSearch
from services.engine.native.build import kernels
from services.engine.native.searching import NativeSearch
from services.user_folders import user_cache


@functools.cache
def compiled_search() -> NativeSearch:
    return NativeSearch(kernels(user_cache()), 2)


def check_weights(search: NativeSearch, vocab: int) -> None:
    """What top_p takes a share of is the same as without a compiler, and right, for likely tokens and for flat ones."""
    for spread in (0.5, 3.0, 30.0):
        logits = torch.randn(20, vocab, generator=torch.Generator().manual_seed(vocab)) * spread
        told = logits.numpy(), maxima(logits).numpy(), np.arange(20)
        compiled, plain = (one.log_sums(*told).tolist() for one in (search, PlainSearch()))
        assert compiled == pytest.approx(plain, rel=1e-15)
        assert compiled == pytest.approx(logits.double().logsumexp(dim=-1).tolist(), abs=1e-5)
