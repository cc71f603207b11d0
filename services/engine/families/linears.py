"""Finds the linear layers of a model, in a process of its own: see `services.models.linears`."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin
from transformers.pytorch_utils import Conv1D

from services import wire
from services.adapters.peft import LowRank
from services.engine.families.config import CACHE_ARGUMENTS, load_config
from services.engine.families.fit import open_fitted
from services.engine.families.low_rank import read_layer
from services.engine.families.registry import spec_of
from services.engine.spec import DecoderSpec
from services.engine.weights.tensors import Tensors
from services.errors import ModelError
from services.files import write_atomically
from services.models.linears import Linears, LinearShape, kept_at
from services.models.pooling import pooling_of

STATES = "belongs to a part that keeps a state, which runs for some requests at a time; leave it out of target_modules"
NO_TEXT = "belongs to a model that makes vectors; adapters change models of text"
HEAD = "makes the logits; adapters change linear layers inside of the model's layers"
OTHER = "is no product that adapters change here; leave it out of target_modules"


def find_linears(folder: Path, cache: Path) -> dict[str, LinearShape]:
    """The linear layers of the model in `folder`. Raises ModelError."""
    config = load_config(folder)
    obstacle = NO_TEXT if pooling_of(folder) else ""
    mode = FakeTensorMode(allow_non_fake_inputs=True)  # tensors with shapes, and no numbers
    with mode:
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    found, spec = shapes_of(model), spec_of(config)
    if obstacle:
        changed = set[str]()
    elif spec:
        changed = read_by_family(spec, open_fitted(folder, cache), found)
    else:
        with mode:
            changed = _called(model, found)
        for name in _with_states(model, config, found):
            found[name] = replace(found[name], obstacle=STATES)
    return {n: s if s.obstacle or n in changed else replace(s, obstacle=obstacle or OTHER) for n, s in found.items()}


def _with_states(model: Any, config: Any, linears: dict[str, LinearShape]) -> list[str]:
    """The names of the linear layers inside of modules that keep a state: the innermost ones of such a layer that take
    its cache."""
    kinds = DynamicCache(config=config).layers
    layers = [f".{i}." for i, kind in enumerate(kinds) if isinstance(kind, LinearAttentionCacheLayerMixin)]
    taking = [
        f"{name}."
        for name, module in model.named_modules()
        if any(argument in inspect.signature(module.forward).parameters for argument in CACHE_ARGUMENTS)
    ]
    inner = [one for one in taking if not any(other != one and other.startswith(one) for other in taking)]
    keeping = tuple(name for name in inner if any(layer in f".{name}" for layer in layers))
    return [name for name in linears if name.startswith(keeping)]


def shapes_of(model: Any) -> dict[str, LinearShape]:
    """The linear layers of transformers' model."""
    head, found = model.get_output_embeddings(), dict[str, LinearShape]()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            found[name] = LinearShape(module.out_features, module.in_features, HEAD if module is head else "")
        elif isinstance(module, Conv1D):
            inputs, outputs = module.weight.shape
            found[name] = LinearShape(outputs, inputs, inputs_first=True)
    return found


def read_by_family(spec: DecoderSpec, base: Tensors, linears: dict[str, LinearShape]) -> set[str]:
    """The names of the linear layers of which the family's reader of weights makes products. `base`: the model's
    tensors."""
    ones = {
        name: LowRank(np.ones((1, shape.inputs), np.float32), np.ones((shape.outputs, 1), np.float32), 1.0)
        for name, shape in linears.items()
    }
    return {name for i in range(spec.layers) for name in read_layer(spec, i, ones, linears, base).changed}


def _called(model: Any, linears: dict[str, LinearShape]) -> set[str]:
    """The linear layers that transformers' layers call once with all tokens. What a layer computes by the weight alone,
    and what gets some tokens only, as experts do, cannot be changed beside it."""
    tokens, calls = 5, Counter[str]()

    def note(name: str) -> Any:
        def count(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            is_whole = isinstance(output, torch.Tensor) and output.shape[:-1].numel() == tokens
            calls[name] += 1 if is_whole else 2

        return count

    absorbed = {name for name, module in model.named_modules() if hasattr(module, "expand_kv")}
    for name, module in model.named_modules():
        if name in linears:
            module.register_forward_hook(note(name))
    with contextlib.suppress(Exception), torch.inference_mode():  # operations that need numbers end it early
        model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    return {
        name
        for name in linears
        if calls[name] == 1
        and "experts." not in name.replace("shared_experts.", "")
        and name.removesuffix(".kv_b_proj") not in absorbed
    }


def keep_linears(folder: Path, cache: Path) -> None:
    """Find the linear layers of the model in `folder`, and keep them in `cache`. Raises ModelError, OSError."""
    write_atomically(kept_at(folder, cache), wire.pack(Linears(find_linears(folder, cache))))


def main() -> None:
    """`linears FOLDER CACHE`: see `keep_linears`."""
    try:
        keep_linears(*map(Path, sys.argv[1:]))
    except (ModelError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
