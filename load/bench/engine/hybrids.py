"""`python -m load.bench.engine.hybrids`: models whose layers keep a state, in the engine and in transformers alone.

Both run transformers' layers, so the difference is what blocks, states and attention over them cost. Weights are
random, in the shapes of a real model's layers, of which there are few. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from load.bench.engine.batches import Batches
from load.options import add_numerics
from load.report import in_turn, machine, table
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.engine.startup import devices

VOCABULARY = 16_384
BATCHES = (1, 8)  # of increments
PROMPT, OUTPUT = 64, 17  # tokens of a request whose increments are timed
LONG_PROMPT = 512
_FOUR = {"num_hidden_layers": 4}

# a model's name, transformers' `model_type`, and what differs from the defaults of its config
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3.5 0.8B": (
        "qwen3_5_text",
        {
            **_FOUR,
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
        },
    ),
    "LFM2 1.2B": (
        "lfm2",
        {
            **_FOUR,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "block_auto_adjust_ff_dim": False,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "layer_types": ["conv", "conv", "full_attention", "conv"],
        },
    ),
    "Granite 4.0 H 1B": (
        "granitemoehybrid",
        {
            **_FOUR,
            "hidden_size": 1536,
            "shared_intermediate_size": 4096,
            "num_local_experts": 0,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "mamba_n_heads": 48,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        },
    ),
}


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of the first iteration, of prompts, and the median of the others."""

    initiation: float
    increment: float


def config_of(model: str) -> Any:
    """The transformers config of one of `MODELS`."""
    family, fields = MODELS[model]
    ids = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return AutoConfig.for_model(family, **ids, **fields)


def in_the_engine(engine: Engine, batch: int, prompt: int, output: int) -> Timed:
    """Equal requests from their prompts to their last tokens."""
    first, *others = [one.seconds for one in Batches(engine).whole(batch, prompt, output)]
    return Timed(first, statistics.median(others) if others else 0.0)


def in_transformers(model: Any, batch: int, prompt: int, output: int) -> Timed:
    """The same with transformers' own cache and attention."""
    drawn = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (batch, prompt), generator=drawn)
    cache = DynamicCache(config=model.config)
    seconds = []
    with torch.inference_mode():
        for _ in range(output):
            began = time.perf_counter()
            logits = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            tokens = logits[:, -1:].argmax(-1)
            seconds.append(time.perf_counter() - began)
    first, *others = seconds
    return Timed(first, statistics.median(others) if others else 0.0)


def compare(config: Any, settings: EngineSettings, rounds: int) -> dict[str, dict[str, list[float]]]:
    """By phase and by who ran it, the seconds of each round."""
    device = devices.choose_device(settings)
    dtype = devices.choose_dtype(settings, device)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
        blocks = max(BATCHES) * -(-(LONG_PROMPT + OUTPUT) // 64)
        engine = Engine.load(folder, replace(settings, kv_blocks=blocks))
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()

    def both(batch: int, prompt: int, output: int) -> Mapping[str, Callable[[], Timed]]:
        return {
            "engine": lambda: in_the_engine(engine, batch, prompt, output),
            "transformers": lambda: in_transformers(model, batch, prompt, output),
        }

    found: dict[str, dict[str, list[float]]] = {}
    for batch in BATCHES:
        timed = in_turn(both(batch, PROMPT, OUTPUT), rounds + 1)
        found[f"increment, batch {batch}"] = {who: [one.increment for one in ran[1:]] for who, ran in timed.items()}
    timed = in_turn(both(1, LONG_PROMPT, 1), rounds + 1)
    found[f"initiation, 1 x {LONG_PROMPT} tokens"] = {
        who: [one.initiation for one in ran[1:]] for who, ran in timed.items()
    }
    return found


def hybrids_table(found: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> str:
    """Milliseconds of an iteration: the median of the rounds."""
    rows = []
    for model, phases in found.items():
        for phase, seconds in phases.items():
            engine, alone = (statistics.median(seconds[who]) * 1e3 for who in ("engine", "transformers"))
            rows.append([model, phase, f"{engine:,.2f}", f"{alone:,.2f}", f"{engine / alone:.2f}"])
    return table(["layers of", "phase", "engine, ms", "transformers alone, ms", "ratio"], rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m load.bench.engine.hybrids", description="Hybrids, compared.")
    parser.add_argument("--only", action="append", choices=list(MODELS), help="run only this one; may be repeated")
    parser.add_argument("--rounds", type=int, default=5)
    add_numerics(parser)
    given = parser.parse_args(arguments)
    settings = EngineSettings(given.device, given.dtype)
    found = {model: compare(config_of(model), settings, given.rounds) for model in given.only or MODELS}
    dtype = devices.choose_dtype(settings, devices.choose_device(settings))
    print(f"{machine()}; {dtype}, {VOCABULARY:,} tokens\n\n{hybrids_table(found)}")


if __name__ == "__main__":
    main()
