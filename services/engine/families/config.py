"""The config of a model as transformers reads it. Models with features that are not served are refused here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from services.engine.weights.folder import format_of
from services.errors import ModelError

# layers that keep keys and values, a state, or both ("hybrid"); and those that keep nothing
SERVED_LAYERS = frozenset(
    {"full_attention", "sliding_attention", "chunked_attention", "linear_attention", "conv"}
    | {"hybrid", "hybrid_sliding", "mlp", "moe", "sparse", "dense"}
)

# Text parts that transformers has as models of their own under another type. Their rotary embeddings have three axes,
# on which a text has the same positions.
AS_TEXT = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
}
BOTH_WAYS = frozenset({"paligemma"})  # a token of the prompt attends to those behind it

CACHE_ARGUMENTS = ("cache_params", "past_key_values")  # as transformers' modules name them

INPUTS_FIRST = frozenset({"gpt2", "gpt-sw3"})  # transformers' Conv1D


def load_config(folder: Path, encoder: bool = False) -> Any:
    """The config of the text model in `folder`, without its quantization: `open_folder` returns tensors that fit it. Of
    a model that reads pictures or sounds too, it is the config of the text model alone; of an `encoder`, it is the
    whole one.

    Raises ModelError if it has a feature that is not served.
    """
    try:
        whole = AutoConfig.from_pretrained(folder, local_files_only=True)
        config = whole.get_text_config()
    except (OSError, ValueError, KeyError) as error:
        words = " ".join(str(error).split())
        raise ModelError(f"{folder} holds no model that transformers can read: {words}") from error
    if encoder:
        return whole
    kind = AS_TEXT.get(config.model_type, config.model_type)
    _check(whole)
    _check(config)
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or whole.model_type in BOTH_WAYS:
        raise ModelError(
            f"{folder} is a {whole.model_type} model ({', '.join(whole.architectures or ['no architecture named'])}), "
            "whose text part transformers has not as a causal language model; name a folder with a model of text"
        )
    if config is not whole:
        config = _alone(config, kind, getattr(whole, "tie_word_embeddings", False))
    if "sliding_window" not in vars(type(config)()):  # left over from another type: its layers have none
        config.__dict__.pop("sliding_window", None)
    if format_of(folder):  # raises for a method that is not served
        if config.model_type in INPUTS_FIRST:
            raise ModelError(f"{config.model_type}: quantized checkpoints of weights [inputs, outputs] are not served")
        for each in ("quantization_config", "compression_config"):
            config.__dict__.pop(each, None)
    return config


def _alone(part: Any, kind: str, tied: bool) -> Any:
    """The config of type `kind` of a text model that is a part of another. `tied`: whether the whole model's logits are
    made by its embedding, which transformers takes from the whole's config."""
    fields = {name: value for name, value in part.to_dict().items() if name not in ("model_type", "architectures")}
    return CONFIG_MAPPING[kind].from_dict({**fields, "tie_word_embeddings": tied})


def _check(config: Any) -> None:
    """Refuse a config with a feature that is not served. Raises ModelError naming the feature."""
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{config.model_type}: models with an encoder and a decoder are not served")
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - SERVED_LAYERS)
    if kinds:
        raise ModelError(f"{config.model_type}: layers of type {', '.join(kinds)} are not served")
