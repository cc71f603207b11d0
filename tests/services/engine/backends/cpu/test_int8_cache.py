"""Keys and values in eight bits: how near they are, what their blocks take, where they are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from driver import Driver, Job
from perplexity import perplexity, text_ids
from tiny_models import make_tiny_model

from services.engine.backends.cpu.build import kernels
from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.engine.startup import devices, loading
from services.errors import SettingsError
from services.requests import SamplingParams

SETTINGS = EngineSettings("cpu", "float32", block_size=16, kv_blocks=64, threads=1)
INT8 = dataclasses.replace(SETTINGS, kv_cache_dtype="int8_per_token_head")
MOST_WORSE = 0.005  # of a perplexity
SCALE = 4  # bytes
PROMPT = list(range(3, 60))


@pytest.mark.parametrize("kept", ["int8_per_token_head", "float32"])
def test_embeddings_have_the_scale_of_the_dtype_that_is_served(kept: str, tmp_path: Path) -> None:
    """The root of 72 is no whole number, and bfloat16 rounds it."""
    folder = make_tiny_model(tmp_path, "gemma2", vocab_size=64, with_tokenizer=False, hidden_size=72)
    settings = dataclasses.replace(SETTINGS, dtype="bfloat16", kv_cache_dtype=kept)
    decoder = Engine.load(folder, settings).decoder
    assert isinstance(decoder, CpuDecoder)
    assert decoder._embedding_scale == float(torch.tensor(72**0.5).to(torch.bfloat16))


@pytest.mark.parametrize(("head_dim", "block_size"), [(16, 16), (16, 5), (32, 16), (64, 48)])
def test_each_number_is_within_half_a_step(head_dim: int, block_size: int, tmp_path: Path) -> None:
    """Compared with a float32 cache in the first layer, whose keys and values depend on no cache."""
    folder = make_tiny_model(tmp_path, vocab_size=64, with_tokenizer=False, head_dim=head_dim)
    caches = []
    for settings in (SETTINGS, INT8):
        engine = Engine.load(folder, dataclasses.replace(settings, block_size=block_size))
        Driver(engine).run([Job("a/0", PROMPT, SamplingParams(1, temperature=0.0))])
        caches.append(engine._cache)
    exact, short = caches
    blocks, heads, dim, size = exact.keys[0].shape
    width = kernels(SETTINGS.cache_dir).orca_width()
    in_pairs = size % (width // 2) == 0 and dim % width == 0
    kinds = [
        (exact.keys[0], short.keys[0], (dim, size), -2),
        (exact.values[0], short.values[0], (size, dim), -1),
    ]
    for stored, flat, shape, along in kinds:
        parts = flat.flatten(2)
        scales = parts[..., dim * size :].contiguous().view(torch.float32)
        assert scales.shape == (blocks, heads, size)
        codes = parts[..., : dim * size]
        if in_pairs:  # of rows
            codes = codes.unflatten(-1, (shape[0] // 2, shape[1], 2)).transpose(-1, -2).flatten(-3)
        numbers = codes.unflatten(-1, shape) * scales.unsqueeze(along)
        steps = stored.abs().amax(along) / 127
        assert torch.allclose(scales, steps, rtol=1e-6)
        assert ((numbers - stored).abs() <= 0.5001 * steps.unsqueeze(along)).all()
        assert torch.count_nonzero(steps) == heads * len(PROMPT)


def test_a_perplexity_is_nearly_that_of_float32(default_model: Path) -> None:
    ids = text_ids(default_model)[:400]
    exact, short = (perplexity(Engine.load(default_model, settings), ids) for settings in (SETTINGS, INT8))
    assert exact is not None
    assert short is not None
    assert exact != short
    assert short == pytest.approx(exact, rel=MOST_WORSE)


def test_a_block_takes_a_byte_for_each_number_and_four_for_each_scale(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 layers, 2 key heads of 16 and as many values: 512 bytes a token in float32."""
    monkeypatch.setattr(devices, "free_bytes", lambda device: 512 * 16 * 1000)
    asked = {"kv_blocks": 0, "kv_memory_fraction": 0.25}
    engines = [Engine.load(tiny_model("llama"), dataclasses.replace(one, **asked)) for one in (SETTINGS, INT8)]
    assert engines[0].figures.num_blocks == 250
    assert engines[1].figures.num_blocks == 250 * 512 // (2 * 2 * 2 * (16 + SCALE))
    cache = engines[1]._cache
    blocks = len(cache.keys[0])
    assert sum(store.nbytes for store in (*cache.keys, *cache.values)) == blocks * 16 * 2 * 2 * 2 * (16 + SCALE)


def test_numerics_name_the_format(tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model("llama")
    assert Engine.load(folder, INT8).figures.numerics.endswith(" float32 kv-int8_per_token_head cpu native")
    short = dataclasses.replace(SETTINGS, kv_cache_dtype="bfloat16")
    assert Engine.load(folder, short).figures.numerics.endswith(" float32 kv-bfloat16 cpu native")
    same = dataclasses.replace(SETTINGS, kv_cache_dtype="float32")
    assert Engine.load(folder, same).figures.numerics == Engine.load(folder, SETTINGS).figures.numerics


def test_transformers_layers_refuse_it(tiny_model: Callable[[str], Path]) -> None:
    for kept in ("int8_per_token_head", "bfloat16"):
        settings = dataclasses.replace(SETTINGS, kv_cache_dtype=kept, fast_path=False)
        with pytest.raises(SettingsError, match=f"kv_cache_dtype={kept} is served on the fast path only.*; use auto"):
            Engine.load(tiny_model("llama"), settings)


def test_transformers_layers_take_the_dtype_of_activations(tiny_model: Callable[[str], Path]) -> None:
    settings = dataclasses.replace(SETTINGS, dtype="float32", kv_cache_dtype="float32", fast_path=False)
    loading.check_settings(tiny_model("llama"), settings)
    assert Engine.load(tiny_model("llama"), settings).decoder.cache_dtype == torch.float32


def test_a_gpu_refuses_another_dtype_than_its_own(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "choose_device", lambda settings: torch.device("cuda"))
    settings = dataclasses.replace(SETTINGS, device="cuda", dtype="bfloat16", kv_cache_dtype="float32")
    with pytest.raises(SettingsError, match="kv_cache_dtype=float32 with dtype=bfloat16 is served on a CPU"):
        loading.load_decoder(tiny_model("llama"), settings, 64)
    with pytest.raises(SettingsError, match="is served on a CPU only"):
        loading.check_ranks(tiny_model("llama"), dataclasses.replace(settings, tp=2))
