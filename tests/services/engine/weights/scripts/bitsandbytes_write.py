"""Checkpoints of bitsandbytes, which transformers saves, and the weights that bitsandbytes computes from them.

Its products of eight bits round activations too, so the logits are those of transformers' layers with these weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from beside import write_all
from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_dequant
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig


def write(model: Path, options: dict[str, Any], checkpoint: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    config = BitsAndBytesConfig(**options, bnb_4bit_compute_dtype=torch.bfloat16)
    load = {"dtype": torch.bfloat16, "device_map": {"": "cpu"}}
    made = AutoModelForCausalLM.from_pretrained(model, quantization_config=config, **load)
    made.save_pretrained(checkpoint)
    AutoTokenizer.from_pretrained(model).save_pretrained(checkpoint)
    loaded = AutoModelForCausalLM.from_pretrained(checkpoint, **load)
    modules = [(name, each) for name, each in loaded.named_modules() if isinstance(each, Linear4bit | Linear8bitLt)]
    weights = {f"{name}.weight": _dequantized(each) for name, each in modules}
    numbers = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    numbers.load_state_dict(weights, strict=False)
    return numbers, weights


def _dequantized(module: Any) -> torch.Tensor:
    if isinstance(module, Linear4bit):
        return dequantize_4bit(module.weight.data, module.weight.quant_state)
    return int8_vectorwise_dequant(module.weight.data, module.weight.SCB)


write_all(write)
