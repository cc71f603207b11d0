"""Models that a flat batch would compute wrong are refused when they are loaded, whatever their family is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_families import small_config
from transformers import AutoModelForCausalLM

from services.engine.backends.stock.attention import NAME
from services.engine.backends.stock.check import check_attention
from services.engine.backends.stock.latent import keep_latent
from services.engine.backends.stock.masks import LayerMask
from services.engine.batch.kv_cache import LayerShape
from services.errors import ModelError


def tiny(family: str, **config: Any) -> Any:
    return AutoModelForCausalLM.from_config(small_config(family, **config), dtype=torch.float32).eval()


def test_each_layer_has_its_mask() -> None:
    layers = check_attention(tiny("gemma2", layer_types=["sliding_attention", "full_attention"]), 2)
    assert [layer.mask for layer in layers] == [LayerMask(window=8), LayerMask()]
    assert [layer.shape for layer in layers] == [LayerShape(heads=2, key_dim=16, value_dim=16)] * 2


def test_latent_attention_keeps_one_vector_of_each_token() -> None:
    model = tiny("deepseek_v3")
    expanded = check_attention(model, 2)
    keep_latent(model)
    latent = check_attention(model, 2)
    assert [layer.shape for layer in expanded] == [LayerShape(heads=4, key_dim=16 + 8, value_dim=12)] * 2
    assert [layer.shape for layer in latent] == [LayerShape(heads=1, key_dim=24 + 8, value_dim=24)] * 2


def test_a_checked_model_makes_no_more_masks() -> None:
    model = tiny("llama")
    check_attention(model, 2)
    assert model.config._attn_implementation == NAME


def test_a_layer_that_mixes_tokens_is_refused() -> None:
    model = tiny("llama")
    model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: output + output.roll(1, 1))
    with pytest.raises(ModelError, match="llama: its layers mix tokens by more than attention"):
        check_attention(model, 2)


def test_positions_by_the_index_in_the_batch_are_refused() -> None:
    model = tiny("llama")

    def place(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output + torch.arange(output.shape[1])[:, None]

    model.model.embed_tokens.register_forward_hook(place)
    with pytest.raises(ModelError, match="place them by more than their positions"):
        check_attention(model, 2)


def test_an_argument_of_attention_that_is_not_known_is_refused() -> None:
    model = tiny("llama")
    attention = model.model.layers[0].self_attn
    forward = attention.forward
    attention.forward = lambda *inputs, **named: forward(*inputs, **named, sparse_indices=torch.zeros(3))
    with pytest.raises(ModelError, match="attention with sparse_indices is not served"):
        check_attention(model, 2)


def test_a_window_that_only_the_cache_of_transformers_has_is_refused() -> None:
    model = tiny("llama")
    model.config.sliding_window = 8
    with pytest.raises(ModelError, match="a window that its masks lack"):
        check_attention(model, 2)


def test_an_encoder_is_refused() -> None:
    with pytest.raises(ModelError, match="an attention mask of its own"):
        check_attention(tiny("bert"), 2)
