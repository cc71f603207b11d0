"""The halves of layers one by one, as several ranks run them, add to x what all of them at once add."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.batch.flat_batch import pack_batch
from services.engine.batch.kv_cache import KVCache
from services.engine.batch.request_state import RequestState
from services.engine.settings import EngineSettings
from services.engine.startup.loading import load_decoder
from services.requests import SamplingParams

BLOCK = 16
TOKENS = 90  # several slices


@pytest.mark.parametrize("family", ["llama", "olmo2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_halves_add_up(family: str, dtype: str, tiny_model: Callable[[str], Path]) -> None:
    at_once, one_by_one = last_of_both(tiny_model(family), dtype)
    assert torch.equal(at_once, one_by_one)


def test_attention_and_mlp_that_are_parallel_are_one_half(tiny_model: Callable[[str], Path]) -> None:
    """Their sum is added to x, so numbers are rounded otherwise than if one after the other is added."""
    at_once, one_by_one = last_of_both(tiny_model("cohere2"), "float32")
    torch.testing.assert_close(at_once, one_by_one, rtol=1e-4, atol=1e-4)


def last_of_both(folder: Path, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The last token's x after all halves at once, and one by one. Of the others, the last MLP may be left out."""
    decoder = load_decoder(folder, EngineSettings("cpu", dtype), 128)
    assert isinstance(decoder, CpuDecoder)
    decoder.bind(KVCache(decoder.layers, 8, BLOCK, decoder.cache_dtype, torch.device("cpu")))
    state = RequestState("r/0", [i % 199 for i in range(TOKENS)], TOKENS, SamplingParams(1))
    state.blocks = array("i", range(8))
    batch = pack_batch([(state, TOKENS)], BLOCK)
    at_once, one_by_one = decoder.begin(batch), decoder.begin(batch)
    x, y = at_once.embed().clone(), one_by_one.embed().clone()
    at_once.run(x, None)
    one_by_one.run(y, lambda change: change)
    return x[-1], y[-1]
