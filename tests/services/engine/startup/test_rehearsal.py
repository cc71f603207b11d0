"""The iteration that a GPU's memory is kept for is as large as any that a scheduler may send."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from services.engine.engine import Engine
from services.engine.settings import MOST_REQUESTS, MOST_ROWS, MOST_TOKENS, EngineSettings
from services.engine.startup import rehearsal
from services.engine.startup.rehearsal import largest_batch, largest_of, rehearse
from services.models.pooling import Pooling

CPU = torch.device("cpu")


@pytest.mark.parametrize("length", [2, 7, 40, 300, 9000])
def test_it_has_as_many_requests_tokens_and_rows_as_there_may_be(length: int) -> None:
    batch = largest_batch(length, 1000, 16, None)
    assert batch.num_requests == MOST_REQUESTS
    assert len(batch.input_ids) == min(MOST_TOKENS, MOST_REQUESTS * length)
    assert len(batch.ends) == MOST_ROWS
    assert batch.positions().max() == length - 1
    assert max(len(state.blocks) for state in batch.sampled) * 16 >= length
    assert all(state.allowed and state.adjustments and state.mask is not None for state in batch.sampled)
    if length > 2:
        assert len(batch.scored_tokens) > 0


@pytest.mark.parametrize(
    ("length", "whole", "texts", "tokens"),
    [(512, True, 16, 8192), (3000, False, 3, 8192), (9000, True, 1, 9000), (10, True, 256, 2560)],
)
def test_texts_fill_it_from_their_beginning(length: int, whole: bool, texts: int, tokens: int) -> None:
    pooling = Pooling("embed", "mean" if whole else "last", 8)
    assert pooling.whole == whole
    batch = largest_batch(length, 1000, 16, pooling)
    assert (batch.num_requests, len(batch.input_ids)) == (texts, tokens)
    assert not batch.contexts.any()
    assert largest_of(length if whole else 0).tokens == max(MOST_TOKENS, tokens)


@pytest.mark.parametrize("fast_path", [True, False])
def test_it_runs(fast_path: bool, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """On any decoder; what it computes means nothing, and only its first block is written."""
    for name, number in (("MOST_REQUESTS", 12), ("MOST_ROWS", 20), ("MOST_TOKENS", 100)):
        monkeypatch.setattr(rehearsal, name, number)
    settings = EngineSettings("cpu", "float32", block_size=4, kv_blocks=3, threads=1, fast_path=fast_path)
    engine = Engine.load(tiny_model("llama"), settings)
    assert rehearse(engine.decoder, 4, 200, 200, None, CPU) == 0
    assert engine._cache.keys[0][0].any()
    assert not engine._cache.keys[0][1:].any()


def test_what_the_allocator_has_left_is_no_part_of_what_it_takes(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a GPU, whose allocator is faked: it takes 100 bytes, and finds 40 of them."""
    for name, number in (("MOST_REQUESTS", 2), ("MOST_ROWS", 3), ("MOST_TOKENS", 10)):
        monkeypatch.setattr(rehearsal, name, number)
    held = {"used": 60, "left": 40}
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: sum(held.values()))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: held.update(left=0))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: held["used"] + max(held["left"], 100))
    engine = Engine.load(tiny_model("llama"), EngineSettings("cpu", "float32", block_size=4, kv_blocks=3, threads=1))
    needed = rehearse(engine.decoder, 4, 30, 200, None, torch.device("cuda"))
    assert needed == 100
