"""`python -m load.bench.engine.float_folder NAME FOLDER`: a model of random FP8 or MXFP4 weights, for `--model` of
benchmarks.

The layers have the shapes of one of the models of `load.bench.engine.families`, and as few of them. Products are FP8
with a scale for each block of 128 x 128, as Qwen and DeepSeek publish them; of GPT-OSS, experts are MXFP4 and no others
are quantized, as published. The rest is bfloat16, also the vocabulary.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from load.bench.engine.families import MODELS, config_of
from services.engine.checkpoints.fp4 import GPT_OSS_GROUP
from services.engine.families.tensors import RandomTensors
from services.engine.families.values import Values

BLOCK = 128
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
EXPONENTS = (117, 120)  # of MXFP4, counted from 127: weights deviate by about 0.02, as others that are random


def write_folder(config: Any, folder: Path) -> None:
    """The model with this config, in a new folder. Its tokens are numbers."""
    config.save_pretrained(folder)
    file = folder / "config.json"
    method = MXFP4 if config.model_type == "gpt_oss" else FP8
    file.write_text(json.dumps(json.loads(file.read_text()) | {"dtype": "bfloat16", "quantization_config": method}))
    words = {str(i): i for i in range(config.vocab_size)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "0"))).save_pretrained(folder)
    stored: dict[str, torch.Tensor] = {}
    for name, weight in _weights(RandomTensors(config, torch.bfloat16, torch.device("cpu")), method is FP8):
        if weight.ndim == 3 and name.endswith("_proj"):
            stored[f"{name}_blocks"], stored[f"{name}_scales"] = in_groups(*weight.shape)
        elif method is FP8 and name.endswith("_proj.weight"):
            stored[name], stored[f"{name}_scale_inv"] = in_blocks(weight)
        else:
            stored[name] = weight
    save_file(stored, folder / "model.safetensors", {"format": "pt"})


def in_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [outputs, inputs] and the scales of blocks; the last of them may be smaller."""
    most = torch.nn.functional.max_pool2d(weight.abs().float()[None], BLOCK, ceil_mode=True)[0]
    scales = most / Values.E4M3.most
    each = scales.repeat_interleave(BLOCK, 0)[: len(weight)].repeat_interleave(BLOCK, 1)[:, : weight.shape[1]]
    return (weight.float() / each).to(torch.float8_e4m3fn), scales


def in_groups(experts: int, inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random codes [experts, outputs, groups, bytes] and exponents of MXFP4."""
    drawn = torch.Generator().manual_seed(inputs + outputs)
    shape = experts, outputs, inputs // GPT_OSS_GROUP
    codes = torch.randint(256, (*shape, GPT_OSS_GROUP // 2), generator=drawn, dtype=torch.uint8)
    return codes, torch.randint(*EXPONENTS, shape, generator=drawn, dtype=torch.uint8)


def _weights(tensors: RandomTensors, one_by_one: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """All weights by name. `one_by_one`: those of experts, as in published checkpoints of FP8."""
    for name in tensors.names:
        weight = tensors.read(name)
        if weight.ndim < 3 or not one_by_one:
            yield name, weight
            continue
        own, _, part = name.rpartition(".")
        for expert, each in enumerate(weight):
            halves = (
                zip(("gate_proj", "up_proj"), each.chunk(2), strict=True) if part == "gate_up_proj" else [(part, each)]
            )
            for single, numbers in halves:
                yield f"{own}.{expert}.{single}.weight", numbers.clone()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m load.bench.engine.float_folder", description=__doc__)
    parser.add_argument("name", choices=list(MODELS))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    write_folder(config_of(given.name), given.folder)


if __name__ == "__main__":
    main()
