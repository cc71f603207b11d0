"""The modules with a state are found in any model, and those that cannot continue a request are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_families import small_config
from transformers import AutoModelForCausalLM

from services.engine.backends.stock.attention import NAME
from services.engine.backends.stock.check import check_attention
from services.engine.backends.stock.find_states import find_states
from services.engine.backends.stock.states import StateKey
from services.engine.batch.kv_cache import StateShape
from services.errors import ModelError

CONV, RECURRENT = StateKey(False, 0), StateKey(True, 0)


def tiny(family: str, **config: Any) -> Any:
    return AutoModelForCausalLM.from_config(small_config(family, **config), dtype=torch.float32).eval()


def test_a_model_of_attention_alone_has_none() -> None:
    assert find_states(tiny("llama")) == []


def test_gated_delta_rules_keep_a_matrix_and_the_inputs_of_a_convolution() -> None:
    model = tiny("qwen3_5_text")
    (layer,) = find_states(model)
    assert (layer.index, layer.one_by_one) == (0, False)
    channels = 2 * 2 * 8 + 4 * 12  # queries, keys, values
    assert layer.shapes == {
        CONV: StateShape((channels, 4), torch.float32),
        RECURRENT: StateShape((4, 8, 12), torch.float32),
    }
    assert [one.index for one in check_attention(model, 2, [layer])] == [1]
    assert model.config._attn_implementation == NAME


def test_a_layer_may_have_attention_and_a_state() -> None:
    model = tiny("falcon_h1")
    layers = find_states(model)
    assert [layer.index for layer in layers] == [0, 1]
    assert [layer.index for layer in check_attention(model, 2, layers)] == [0, 1]


def test_a_layer_may_have_neither() -> None:
    model = tiny("nemotron_h")
    layers = find_states(model)
    assert [layer.index for layer in layers] == [0]
    assert [layer.index for layer in check_attention(model, 4, layers)] == [2]


def test_scans_without_an_initial_state_continue_by_single_tokens() -> None:
    (layer,) = find_states(tiny("jamba"))
    assert layer.one_by_one


def test_a_layer_that_forgets_its_state_is_refused() -> None:
    model = tiny("lfm2")
    conv = model.model.layers[0].conv
    forward = conv.forward

    def forget(hidden_states: torch.Tensor, past_key_values: Any = None, **named: Any) -> torch.Tensor:
        if past_key_values is not None and past_key_values.get_conv_state(0) is not None:
            past_key_values.get_conv_state(0).zero_()
        output: torch.Tensor = forward(hidden_states, past_key_values, **named)
        return output

    conv.forward = forget
    with pytest.raises(ModelError, match="lfm2: its layers with a state cannot continue a request"):
        find_states(model)


def test_shared_layers_are_refused() -> None:
    kinds = ["linear_attention", "hybrid"] * 2
    model = tiny("zamba2", layers_block_type=kinds, num_hidden_layers=4, mamba_d_state=16, n_mamba_heads=8)
    with pytest.raises(ModelError, match="zamba2: its attention cannot be replaced"):
        check_attention(model, 4, find_states(model))


def test_more_than_one_result_is_refused() -> None:
    with pytest.raises(ModelError, match="zaya: its layers with a state are not served"):
        find_states(tiny("zaya", num_experts_per_tok=1))
