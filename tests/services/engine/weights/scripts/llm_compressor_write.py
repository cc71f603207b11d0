"""Checkpoints of llm-compressor, and the weights that compressed-tensors decompresses from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from beside import write_all
from compressed_tensors.quantization import disable_quantization
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from transformers import AutoModelForCausalLM, AutoTokenizer

MODIFIERS = {"Quantization": QuantizationModifier, "GPTQ": GPTQModifier}
CALIBRATED = ("FP8", "NVFP4")  # schemes with scales of activations
SAMPLES, LENGTH = 16, 64


def write(model: Path, options: dict[str, Any], checkpoint: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    made = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(model)
    recipe = MODIFIERS[options["modifier"]](**options["arguments"])
    # without data, schemes that need none are not calibrated
    needed = options["modifier"] != "Quantization" or options["arguments"].get("scheme") in CALIBRATED
    data = {"dataset": _samples(), "max_seq_length": LENGTH, "num_calibration_samples": SAMPLES} if needed else {}
    oneshot(model=made, recipe=recipe, **data)
    made.save_pretrained(checkpoint, save_compressed=True)
    tokenizer.save_pretrained(checkpoint)
    made(torch.tensor([[1]]))  # it decompresses its weights when it is called
    made.apply(disable_quantization)  # of activations
    schemes = ((name, each, getattr(each, "quantization_scheme", None)) for name, each in made.named_modules())
    return made, {f"{name}.weight": each.weight for name, each, scheme in schemes if scheme and scheme.weights}


def _samples() -> Dataset:
    drawn = torch.Generator().manual_seed(0)
    rows = [torch.randint(2, 310, (LENGTH,), generator=drawn).tolist() for _ in range(SAMPLES)]
    return Dataset.from_list([{"input_ids": row, "attention_mask": [1] * LENGTH} for row in rows])


write_all(write)
