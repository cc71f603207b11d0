"""Scores of whole rows on an accelerator are those of the CPU's sampler, bitwise, at any place of any batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from compiled_search import compiled_search
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.sampling import whole_rows
from services.engine.sampling.prompt_logprobs import score_batched, score_on_cpu


@settings(deadline=None)
@given(
    rows=st.integers(1, 9),
    vocab=st.sampled_from([1, 7, 97, 1030, 5_003]),
    seed=st.integers(0, 99),
    ties=st.booleans(),
    bad=st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 4), st.sampled_from([-np.inf, np.inf, np.nan])), max_size=3
    ),
)
def test_scores_are_those_of_a_cpu(
    rows: int, vocab: int, seed: int, ties: bool, bad: list[tuple[int, int, float]]
) -> None:
    drawn = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=drawn) * 4
    if ties:
        logits = logits.round()  # has both zeros
    targets = torch.randint(vocab, (rows,), generator=drawn).numpy().astype(np.int32)
    for row, place, number in bad:
        logits[row % rows, place % vocab] = number
    count = min(vocab, 20)
    found, expected = score_batched(logits, targets, count), score_on_cpu(logits, targets, count, compiled_search())
    sound = found.sound
    assert np.array_equal(sound, expected.sound)
    for one, other in ((found.ids, expected.ids), (found.token_ranks, expected.token_ranks)):
        assert np.array_equal(one[sound], other[sound])
    np.testing.assert_array_max_ulp(found.own[sound], expected.own[sound], 2)  # two libraries' logarithm
    np.testing.assert_array_max_ulp(found.values[sound], expected.values[sound], 2)


def test_bits_do_not_depend_on_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal rows, in batches of which one part or several are scored at once."""
    row = torch.randn(50_257).repeat(7, 1)
    own = torch.full((7,), 11)
    logs, ids = whole_rows.score(row, own, 20)
    monkeypatch.setattr(whole_rows, "AT_ONCE", 3 * 50_257)
    again, others = whole_rows.score(row, own, 20)
    alone, its = whole_rows.score(row[:1], own[:1], 20)
    for values, tokens in ((logs, ids), (again, others)):
        assert torch.equal(values, alone.expand(7, -1))
        assert torch.equal(tokens, its.expand(7, -1))
