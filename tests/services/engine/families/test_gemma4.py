"""What layers of Gemma 4 keep, and what is read from configs as they are published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from family_check import STOCK
from transformers import AutoConfig

from services.engine.batch.kv_cache import LayerShape
from services.engine.engine import Engine
from services.engine.families.registry import spec_of
from services.engine.spec import HeadsSpec

E2B = {
    "num_hidden_layers": 35,
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "global_head_dim": 512,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
}
DENSE = {
    "num_hidden_layers": 12,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "use_bidirectional_attention": "vision",
}


def test_keys_that_several_layers_read_are_kept_once(tiny_model: Callable[[str], Path]) -> None:
    """On transformers' layers each of the four layers has a copy."""
    fast, stock = (Engine.load(tiny_model("gemma4_text"), replace(STOCK, fast_path=on)) for on in (True, False))
    own = [LayerShape(2, 16, 16), LayerShape(2, 32, 32)]
    assert fast.decoder.layers == own
    assert stock.decoder.layers == own * 2
    sizes = [sum(each.bytes(one.decoder.cache_dtype) for each in one.decoder.layers_in_memory) for one in (fast, stock)]
    assert sizes[0] * 2 == sizes[1]


def test_e2b() -> None:
    spec = spec_of(AutoConfig.for_model("gemma4_text", **E2B))
    assert spec is not None
    assert spec.heads_of(14) == HeadsSpec(8, 1, 512)
    assert spec.heads_of(13) == HeadsSpec(8, 1, 256)
    assert [spec.kv_layer(i) for i in (12, 13, 14, 15, 18, 19, 34)] == [12, 13, 14, 13, 13, 14, 14]
    assert [spec.intermediate_of(i) for i in (14, 15)] == [6144, 12288]
    assert (spec.layer_inputs, spec.layer_inputs_scale) == (256, 16.0)
    assert sum(frequency > 0 for frequency in spec.frequencies) == 64  # of 256 pairs
    assert len(spec.local_frequencies) == 128


def test_a_dense_variant() -> None:
    spec = spec_of(AutoConfig.for_model("gemma4_text", **DENSE))
    assert spec is not None
    assert [spec.has_values(i) for i in (4, 5)] == [True, False]
    assert spec.heads_of(4) == HeadsSpec(32, 16, 256)
    assert spec.heads_of(5) == HeadsSpec(32, 4, 512)
    assert not spec.layer_inputs
    assert not spec.kv_layers
