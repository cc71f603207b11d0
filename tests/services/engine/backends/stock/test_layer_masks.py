"""Masks that transformers makes are read as windows and chunks, or not at all."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

from services.engine.backends.stock.masks import LayerMask, MaskFunction, MaskRequest

NO_PADDING = torch.zeros(1, dtype=torch.long)


@given(size=st.integers(1, 70), chunked=st.booleans(), start=st.integers(0, 300), count=st.integers(1, 40))
@settings(max_examples=30)
def test_windows_and_chunks_are_those_of_transformers(size: int, chunked: bool, start: int, count: int) -> None:
    function = chunked_causal_mask_function(size, NO_PADDING) if chunked else sliding_window_causal_mask_function(size)
    mask = MaskRequest(function, size).read()
    assert mask == (LayerMask(chunk=size) if chunked and size > 1 else LayerMask(window=size))
    queries, keys = torch.arange(start, start + count), torch.arange(start + count)
    assert torch.equal(mask.shows(queries, keys), function(0, 0, queries[:, None], keys[None, :]))
    for position in (start, start + count - 1):
        first = max(0, mask.first(position))
        assert mask.shows(torch.tensor([position]), keys)[0].nonzero().min() == first


def test_a_causal_mask_limits_nothing() -> None:
    mask = MaskRequest(causal_mask_function, None).read()
    assert mask == LayerMask()
    assert not mask.limited


def holes(batch: object, head: object, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return (keys % 3 != 1) | (keys == queries)


@pytest.mark.parametrize(
    ("function", "size"),
    [
        (bidirectional_mask_function, None),
        (sliding_window_bidirectional_mask_function(5), 5),
        (and_masks(causal_mask_function, holes), None),
        (and_masks(sliding_window_causal_mask_function(9), holes), 9),
        (sliding_window_causal_mask_function(9), 8),
        (sliding_window_causal_mask_function(7000), None),
    ],
)
def test_other_masks_are_not_read(function: MaskFunction, size: int | None) -> None:
    assert MaskRequest(function, size).read() is None
