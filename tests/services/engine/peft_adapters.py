"""Random LoRA adapters of tiny models, made by PEFT, and what PEFT's own model gives with them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from driver import Job
from peft import LoraConfig, PeftModel, get_peft_model
from stock_model import likeliest
from transformers import AutoModelForCausalLM

from services.adapters.store import folder_of
from services.engine.families.linears import keep_linears
from services.models.linears import LinearShape, kept_at, load_linears


def make_adapter(model: Path, folder: Path, seed: int, **config: Any) -> Path:
    """An adapter of all linear layers, or of those that `config` targets. Its numbers are so large that most tokens
    change."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **config}
    adapted = get_peft_model(base, LoraConfig(**settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    adapted.save_pretrained(folder)
    return folder


def keep(folder: Path, files: Path, digest: str) -> str:
    """Copy an adapter to where engines look for its digest, which is returned."""
    shutil.copytree(folder, folder_of(files, digest))
    return digest


def find_linears(model: Path, cache: Path) -> dict[str, LinearShape]:
    """See `load_linears`; they are found in this process, which has imported transformers already."""
    if not kept_at(model, cache).exists():
        keep_linears(model, cache)
    return load_linears(model, cache)


def likeliest_with(model: Path, adapters: dict[str, Path], jobs: list[Job]) -> list[list[int]]:
    """The outputs, if and only if PEFT's model in float32 gives them greedily, each with the adapter that its digest
    names; see `likeliest`."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    found: dict[str, list[int]] = {}
    for digest in ["", *adapters]:
        served = PeftModel.from_pretrained(base, adapters[digest]).eval() if digest else base
        for job in jobs:
            if job.sampling.adapter == digest:
                found[job.id] = likeliest(served, job.prompt, job.output)
        if digest:
            base = served.unload()
    return [found[job.id] for job in jobs]
