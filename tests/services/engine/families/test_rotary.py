"""Rotary embeddings of the fast path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import FAMILIES
from transformers import AutoConfig, AutoModelForCausalLM

from services.engine.families.decoder_weights import rotary_table
from services.engine.families.llama import Llama
from services.engine.families.registry import FAMILIES as FAST
from services.engine.families.registry import spec_of

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_theta": 10_000.0},
    "linear": {"rope_theta": 10_000.0, "factor": 4.0},
    "llama3": {
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("family", [family for family, kind in FAST.items() if kind is Llama])
@pytest.mark.parametrize("rope", ROPES)
def test_tables_are_transformers_own(family: str, rope: str) -> None:
    config = AutoConfig.for_model(family, **FAMILIES[family], rope_parameters={"rope_type": rope, **ROPES[rope]})
    with torch.device("meta"):
        kind = type(AutoModelForCausalLM.from_config(config).model.rotary_emb)
    expected = kind(config)(torch.zeros(1), torch.arange(256)[None])
    spec = spec_of(config)
    assert spec
    for table, both_halves in zip(rotary_table(spec, 256), expected, strict=True):
        assert torch.equal(torch.cat([table, table], dim=1), both_halves[0])
