"""Loads a transformers folder as a StockDecoder. A model whose layers need something that it lacks is refused: see
`check`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModel, AutoModelForCausalLM, GenerationConfig
from transformers.initialization import no_init_weights
from transformers.utils import logging as transformers_logging

from services.engine.backends.stock.attention import NAME
from services.engine.backends.stock.check import check_attention
from services.engine.backends.stock.decoder import StockDecoder
from services.engine.backends.stock.find_states import find_states
from services.engine.backends.stock.latent import keep_latent
from services.engine.backends.stock.positions import place_by_position
from services.engine.families.config import load_config
from services.engine.families.fit import HEAD, describe_missing
from services.engine.families.heads import head_of
from services.engine.weights.folder import open_folder
from services.engine.weights.tensors import Tensors
from services.errors import ModelError
from services.models.pooling import Pooling, pooling_of
from services.models.weights_files import text_name

EMBEDDING = "embed_tokens.weight"


def load_stock(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    length: int,
    tensors: Tensors | None = None,
    path: str = "sdpa",
) -> StockDecoder:
    """The model in `folder`, or of its config with these tensors, for requests of up to `length` tokens; for `path` see
    Decoder. Raises ModelError."""
    config = load_config(folder)
    model = make_model(config, tensors, dtype, device) if tensors else load_model(folder, dtype, device)
    if pooling := pooling_of(folder):
        _replace_head(model, pooling, folder)
    keep_latent(model)
    chosen = place_by_position(model, length)
    states = find_states(model)
    layers = check_attention(model, config.num_hidden_layers, states)
    return StockDecoder(model, layers, states, f"{path} {chosen}".rstrip())


def import_family(folder: Path) -> None:
    """Build the model of `folder` without memory for weights. transformers imports a family's code when it first builds
    one, which takes seconds, where weights may take milliseconds. Raises ModelError."""
    pooling = pooling_of(folder)
    encoder = pooling is not None and pooling.encoder
    config = load_config(folder, encoder)
    auto: Any = AutoModel if encoder else AutoModelForCausalLM
    with torch.device("meta"):
        auto.from_config(config)


def load_model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """The model in `folder`, with our attention if it can be replaced, which `check_attention` tells. Raises
    ModelError."""
    model = read_model(folder, dtype)
    model.set_attn_implementation(NAME)
    return model.to(device).eval()


def read_model(folder: Path, dtype: torch.dtype) -> Any:
    """The model in `folder` as transformers has it, on the CPU. What the folder does not store as numbers is widened
    tensor by tensor. Raises ModelError."""
    transformers_logging.disable_progress_bar()
    config, tensors = load_config(folder), open_folder(folder)
    with torch.device("meta"):
        model_class: Any = type(AutoModelForCausalLM.from_config(config))
    numbers = {text_name(name): _Unread(tensors, name) for name in tensors.names}
    try:
        model, found = model_class.from_pretrained(
            None, config=config, state_dict=numbers, dtype=dtype, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{folder} holds no causal language model with safetensors: {error}") from error
    unneeded = HEAD if pooling_of(folder) else frozenset()
    if missing := sorted(set(found["missing_keys"]) - unneeded):  # transformers would draw them at random
        raise ModelError(f"{folder}: {describe_missing(missing)}")
    if (folder / "generation_config.json").exists():  # transformers reads it only together with safetensors
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model


@dataclass(frozen=True, slots=True)
class _Unread:
    """A tensor that transformers reads when it needs it, as it does with slices of safetensors."""

    tensors: Tensors
    name: str

    def __getitem__(self, _: object) -> torch.Tensor:
        return self.tensors.read(self.name)


def _replace_head(model: Any, pooling: Pooling, folder: Path) -> None:
    """Let the model give hidden states, or what a classifier makes of them, in place of logits. Raises ModelError."""
    config, tensors = model.config, open_folder(folder)
    name = "lm_head.weight" if "lm_head.weight" in tensors else next(n for n in tensors.names if n.endswith(EMBEDDING))
    weight = head_of(tensors, name, pooling, config.hidden_size, folder).to(model.device, model.dtype)
    head: torch.nn.Module = torch.nn.Identity()
    if pooling.kind == "classify":
        outputs, inputs = weight.shape
        head = torch.nn.Linear(inputs, outputs, bias=False, device="meta")
        head.weight = torch.nn.Parameter(weight)
    model.set_output_embeddings(head)
    for factor in ("final_logit_softcapping", "logits_scaling", "logit_scale"):
        if getattr(config, factor, None) is not None:
            setattr(config, factor, None if factor.endswith("softcapping") else 1.0)


def make_model(config: Any, tensors: Tensors, dtype: torch.dtype, device: torch.device) -> Any:
    """A model of this config with weights from `tensors` and with our attention, if it can be replaced."""
    with device, no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors.read(name))
    model.set_attn_implementation(NAME)
    return model.eval()
