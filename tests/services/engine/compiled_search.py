"""The compiled search for candidates, once for all tests."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from mixed_requests import EOS, MIX, mixed
from plain_sampler import plain_token

from services.engine.backends.cpu.build import kernels
from services.engine.sampling import cpu_sampler
from services.engine.sampling.search import CompiledSearch
from services.engine.sampling.truncation import WHOLE, weights
from services.engine.sampling.whole_rows import chunk_maxima
from services.files import user_cache


@functools.cache
def compiled_search() -> CompiledSearch:
    return CompiledSearch(kernels(user_cache()), 2)


PLAIN = [kind for kind in MIX if "thinking_token_budget" not in kind]  # the plain definition forces no token


def check_draws(search: CompiledSearch) -> None:
    """Tokens are those of the plain definition, for requests of all its kinds."""
    for vocab in (50, 29 * 53, 6400):
        check_weights(search, vocab)
        logits = torch.randn(200, vocab, generator=torch.Generator().manual_seed(vocab)) * 4
        rows = mixed(200, vocab, PLAIN)
        expected = [plain_token(one, row, EOS) for one, row in zip(logits, rows, strict=True)]
        assert cpu_sampler.sample(logits, rows, search).tokens == expected


def check_weights(search: CompiledSearch, vocab: int) -> None:
    """What top_p takes a share of is that of the definition, and right, for likely tokens and for flat ones."""
    for spread in (0.5, 3.0, 30.0):
        logits = torch.randn(20, vocab, generator=torch.Generator().manual_seed(vocab)) * spread
        told = logits.numpy(), chunk_maxima(logits).numpy(), np.arange(20)
        compiled, tops = search.log_sums(*told).tolist(), logits.amax(dim=1, keepdim=True)
        plain = tops[:, 0].double() + (weights(logits - tops).sum(dim=1).double() / WHOLE).log()
        assert compiled == pytest.approx(plain.tolist(), rel=1e-15, abs=0.0)
        assert compiled == pytest.approx(logits.double().logsumexp(dim=-1).tolist(), abs=1e-5)
