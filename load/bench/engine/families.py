"""`python -m load.bench.engine.families`: the fast path beside transformers' own layers, for each family of models.

Weights are random, in the shapes of a real model's layers. Few layers and `VOCABULARY` tokens keep a run short: what a
layer costs does not depend on their number. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from load.bench.engine.batches import Batches
from load.bench.engine.floor import ModelShape
from load.bench.engine.phases import Measured, Subject, increment, initiation
from load.bench.engine.rates import MachineRates, measure_rates
from load.bench.engine.timing import FULL, Scale
from load.options import add_numerics
from load.report import machine, table
from services.engine.engine import Engine
from services.engine.families.tensors import RandomTensors
from services.engine.settings import EngineSettings
from services.engine.startup import devices

LAYERS = 4  # unless a model names another number
VOCABULARY = 16_384
BATCHES = (1, 8)  # of increment iterations
CONTEXT = 512  # their tokens, and those of a prompt
BLOCKS = 512
_WIDE = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "num_key_value_heads": 16}

_GEMMA3 = {
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "sliding_window": 512,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
}

# a model's name, transformers' `model_type`, and what differs from the defaults of its config
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 3.2 1B": ("llama", {**_WIDE, "num_attention_heads": 32, "num_key_value_heads": 8}),
    "SmolLM3 3B": ("smollm3", {}),
    "ERNIE 4.5 0.3B": ("ernie4_5", {"num_hidden_layers": 18}),
    "Helium 1 2B": ("helium", {}),
    "GLM-4 9B": ("glm4", {"num_hidden_layers": 2}),
    "Arcee AFM 4.5B": (
        "arcee",
        {"num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128},
    ),
    "Hunyuan 1.8B": (
        "hunyuan_v1_dense",
        {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "rope_parameters": {"rope_type": "dynamic", "factor": 1.0, "alpha": 1000.0, "rope_theta": 10_000.0},
        },
    ),
    "Command R7B": (
        "cohere2",
        {
            "num_hidden_layers": 2,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "max_position_embeddings": 8192,
        },
    ),
    "Granite 3.2 2B": (
        "granite",
        {
            **_WIDE,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.015625,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
        },
    ),
    "OLMoE 1B-7B": ("olmoe", {"intermediate_size": 1024}),
    "Qwen1.5 MoE A2.7B": ("qwen2_moe", {"num_hidden_layers": 2}),  # of 1.1 GB each
    "ERNIE 4.5 21B-A3B": ("ernie4_5_moe", {"num_hidden_layers": 3}),  # two of 1.5 GB, after one with an MLP
    "Qwen3 30B-A3B": (
        "qwen3_moe",
        {
            "num_hidden_layers": 2,  # of 1.3 GB each
            "head_dim": 128,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "num_experts": 128,
            "norm_topk_prob": True,
        },
    ),
    "Mixtral 8x7B": ("mixtral", {"num_hidden_layers": 1}),  # of 2.9 GB
    "GPT-OSS 20B": ("gpt_oss", {"num_hidden_layers": 2, "num_experts": 32}),  # of 1.6 GB each; one has a window
    "OLMo 2 1B": ("olmo2", _WIDE),
    "OLMo 3 7B": (
        "olmo3",
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "layer_types": ["sliding_attention", "full_attention"],
            "max_position_embeddings": 65_536,
        },
    ),
    "EXAONE 4.0 1.2B": (
        "exaone4",
        {
            "hidden_size": 2048,
            "intermediate_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "sliding_window": None,
            "layer_types": ["full_attention"] * LAYERS,
        },
    ),
    "Seed-OSS 36B": ("seed_oss", {"num_hidden_layers": 2, "hidden_size": 5120}),  # of 1.1 GB each
    "Phi-4-mini": (
        "phi3",
        {
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75},
        },
    ),
    "Gemma 2B": (
        "gemma",
        {"hidden_size": 2048, "intermediate_size": 16_384, "num_attention_heads": 8, "num_key_value_heads": 1},
    ),
    "Gemma 2 2B": ("gemma2", {}),
    "Gemma 3 270M": (  # whole: fewer layers would stay in a cache
        "gemma3_text",
        {
            **_GEMMA3,
            "num_hidden_layers": 18,
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
            "vocab_size": 262_144,
            "hidden_size": 640,
            "intermediate_size": 2048,
        },
    ),
    # five layers with keys of their own and five that attend to those, of 15 and 20
    "Gemma 4 E2B": (
        "gemma4_text",
        {
            "num_hidden_layers": 10,
            "hidden_size": 1536,
            "intermediate_size": 6144,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "sliding_window": 512,
            "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2,
            "num_kv_shared_layers": 5,
            "use_double_wide_mlp": True,
            "vocab_size_per_layer_input": VOCABULARY,
            "final_logit_softcapping": 30.0,
        },
    ),
    "Gemma 3 1B": ("gemma3_text", {**_GEMMA3, "hidden_size": 1152, "intermediate_size": 6912}),
}


@dataclass(frozen=True, slots=True)
class Compared:
    """A phase of one model, on the fast path and with transformers' own layers."""

    model: str
    fast: Measured
    stock: Measured

    @property
    def times(self) -> float:
        """How many times as long transformers' layers take."""
        return self.stock.seconds / self.fast.seconds


def config_of(model: str) -> Any:
    """The transformers config of one of `MODELS`."""
    family, fields = MODELS[model]
    ids = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return AutoConfig.for_model(family, **{**ids, "num_hidden_layers": LAYERS, **fields})


def compare(model: str, config: Any, settings: EngineSettings, scale: Scale) -> Iterator[Compared]:
    """Each phase of a model with this config."""
    device = devices.choose_device(settings)
    tensors = RandomTensors(config, devices.choose_dtype(settings, device), device)
    found: list[list[Measured]] = []
    rates: MachineRates | None = None
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        config.save_pretrained(folder)
        for fast_path in (True, False):
            engine = Engine.load(folder, replace(settings, fast_path=fast_path, kv_blocks=BLOCKS), tensors=tensors)
            assert ("sdpa" in engine.decoder.path) != fast_path, f"{model} runs as {engine.decoder.path}"
            shape = ModelShape.of(config, engine.decoder.weight_bytes, engine.decoder.cache_dtype)
            if rates is None:
                rates = measure_rates(device, engine.decoder.weight_dtype, *shape.widest, shape.stored, scale)
            found.append(list(_phases(Subject(engine, shape, rates, scale))))
            del engine
            gc.collect()
    for fast, stock in zip(*found, strict=True):
        yield Compared(model, fast, stock)


def _phases(subject: Subject) -> Iterator[Measured]:
    batches = Batches(subject.engine)
    for batch in BATCHES:
        yield increment(subject, batches, batch, CONTEXT)
    yield initiation(subject, batches, 1, CONTEXT)


def families_table(found: list[Compared]) -> str:
    """Mean milliseconds of an iteration."""
    rows = []
    for one in found:
        times = (one.fast.floor.seconds, one.fast.seconds, one.stock.seconds)
        lowest, fast, stock = (f"{seconds / one.fast.iterations * 1e3:,.2f}" for seconds in times)
        rows.append([one.model, one.fast.name, lowest, fast, f"{one.fast.ratio:.2f}", stock, f"{one.times:.1f}"])
    head = ["layers of", "phase", "floor, ms", "fast path, ms", "ratio", "transformers' layers, ms", "times as long"]
    return table(head, rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m load.bench.engine.families", description="Families, compared.")
    parser.add_argument("--only", action="append", choices=list(MODELS), help="run only this one; may be repeated")
    add_numerics(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured to this file")
    given = parser.parse_args(arguments)
    settings = EngineSettings(given.device, given.dtype)
    scale = replace(FULL, row_counts=(512, 2048))
    found = [one for model in given.only or MODELS for one in compare(model, config_of(model), settings, scale)]
    dtype = devices.choose_dtype(settings, devices.choose_device(settings))
    print(f"{machine()}; {dtype}, {VOCABULARY:,} tokens\n\n{families_table(found)}")
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
