"""What a GGUF file says about attention that transformers (5.23) does not read: scaled rotary embeddings, and the
scale of the largest Gemma models. Without it a model computes other numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from services.errors import ModelError

# of Llama 3.1 and 3.2; their files have only the factors that follow from these
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_BETAS = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow", "attn_factor": "attention_factor"}
_LAYERS_OF_27B = {"gemma2": 46, "gemma3_text": 62}


def complete_config(config: Any, fields: Mapping[str, Any], tensors: Iterable[Any]) -> None:
    """Add to transformers' `config` what it lacks of a file's `fields` and `tensors`, as GGUFReader has them. Raises
    ModelError for rotary embeddings that are not served."""
    architecture = fields["general.architecture"].contents()
    by_name = {tensor.name: tensor for tensor in tensors}

    def of(name: str) -> Any:
        field = fields.get(f"{architecture}.rope.scaling.{name}")
        return None if field is None else field.contents()

    if config.num_hidden_layers == _LAYERS_OF_27B.get(config.model_type):
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
    if any(name.startswith("rope_factors_") for name in by_name):
        raise ModelError("rotary embeddings with 'rope_factors_long' (longrope) are not read from GGUF files")
    if "rope_freqs.weight" in by_name:
        _set(config, _llama3(config, by_name["rope_freqs.weight"].data))
        return
    kind = of("type")
    if kind in (None, "none"):
        return
    scaling: dict[str, Any] = {"rope_type": kind, "factor": float(of("factor") or 1.0)}
    if kind == "yarn":
        scaling |= {ours: float(value) for theirs, ours in _BETAS.items() if (value := of(theirs)) is not None}
        if (original := of("original_context_length")) is not None:
            scaling["original_max_position_embeddings"] = int(original)
    elif kind != "linear":
        raise ModelError(f"rotary embeddings of the type {kind!r} are not read from GGUF files")
    _set(config, scaling)


def _set(config: Any, scaling: dict[str, Any]) -> None:
    """Layers with a window keep their own, where they have them."""
    if "full_attention" in config.rope_parameters:
        config.rope_parameters["full_attention"] |= scaling
    else:
        config.rope_parameters |= scaling


def _llama3(config: Any, factors: Any) -> dict[str, Any]:
    """The scaling whose factors these are: they divide the frequencies."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling: dict[str, Any] = {"rope_type": "llama3", "factor": float(factors.max()), **_LLAMA3}
    trial = type(config).from_dict(config.to_dict())
    trial.rope_parameters |= scaling
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](trial, "cpu")
    dim = config.head_dim
    plain = config.rope_parameters["rope_theta"] ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if len(factors) != dim // 2 or not torch.allclose(plain / frequencies, torch.tensor(factors), rtol=1e-3):
        raise ModelError("the factors in 'rope_freqs.weight' are not those of Llama 3, and others are not served")
    return scaling
