"""The halves of layers one by one, as several ranks run them, add to x what all of them at once add."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.batch.flat_batch import pack
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
    decoder = load_decoder(tiny_model(family), EngineSettings("cpu", dtype), 128)
    assert isinstance(decoder, CpuDecoder)
    decoder.bind(KVCache(decoder.layers, 8, BLOCK, decoder.cache_dtype, torch.device("cpu")))
    state = RequestState("r/0", [i % 199 for i in range(TOKENS)], TOKENS, SamplingParams(1))
    state.blocks = array("i", range(8))
    batch = pack([(state, TOKENS)], BLOCK)
    at_once, one_by_one = decoder.begin(batch), decoder.begin(batch)
    x, y = at_once.embed().clone(), one_by_one.embed().clone()
    at_once.run(x, None)
    one_by_one.run(y, lambda change: change)
    assert torch.equal(x[-1], y[-1])  # of the others, the last MLP may be left out
