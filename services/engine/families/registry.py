"""The registry of families on the fast path. A model of another family runs transformers' own layers."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from services import wire
from services.engine.families.bert import Bert, Roberta
from services.engine.families.decoder_weights import DecoderWeights
from services.engine.families.experts import Dots1, Ernie45Moe, Glm4Moe, Mixtral, Olmoe, Qwen2Moe, Qwen3Moe
from services.engine.families.gemma import Gemma, Gemma1
from services.engine.families.gemma4 import Gemma4
from services.engine.families.glm import Glm, Glm4
from services.engine.families.gpt2 import Gpt2
from services.engine.families.gpt_oss import GptOss
from services.engine.families.granite import Granite, GraniteHybrid
from services.engine.families.kept import spec_file
from services.engine.families.llama import Llama
from services.engine.families.llama_variants import Arcee, Cohere, Cohere2, Hunyuan, Interleaved, SmolLm3
from services.engine.families.phi3 import Phi3
from services.engine.families.post_norms import Exaone4, Olmo2, Olmo3
from services.engine.parallel.layout import Partition
from services.engine.spec import DecoderSpec
from services.engine.weights.tensors import Tensors
from services.files import write_atomically

# by transformers' `model_type`
FAMILIES: dict[str, type[DecoderWeights]] = {
    "llama": Llama,
    "mistral": Llama,
    "qwen2": Llama,
    "qwen3": Llama,
    "seed_oss": Llama,
    "ernie4_5": Interleaved,
    "helium": Interleaved,
    "glm": Glm,
    "glm4": Glm4,
    "arcee": Arcee,
    "hunyuan_v1_dense": Hunyuan,
    "cohere": Cohere,
    "cohere2": Cohere2,
    "granite": Granite,
    "granitemoehybrid": GraniteHybrid,
    "olmo2": Olmo2,
    "olmo3": Olmo3,
    "exaone4": Exaone4,
    "phi3": Phi3,
    "smollm3": SmolLm3,
    "qwen2_moe": Qwen2Moe,
    "qwen3_moe": Qwen3Moe,
    "dots1": Dots1,
    "glm4_moe": Glm4Moe,
    "ernie4_5_moe": Ernie45Moe,
    "olmoe": Olmoe,
    "mixtral": Mixtral,
    "gpt_oss": GptOss,
    "gpt2": Gpt2,
    "gemma": Gemma1,
    "gemma2": Gemma,
    "gemma3_text": Gemma,
    "gemma4_text": Gemma4,
    "gemma4_unified_text": Gemma4,
}

LAYERS = frozenset({"full_attention", "sliding_attention"})  # of `layer_types`
WHOLE = Partition()

# of those whose tokens attend to all tokens of their text
ENCODERS: dict[str, type[DecoderWeights]] = {
    "bert": Bert,
    "roberta": Roberta,
    "xlm-roberta": Roberta,
    "camembert": Roberta,
}


def spec_of(config: Any, encoder: bool = False) -> DecoderSpec | None:
    """The spec of a text model's config; None for a family, or a variant of one, that the fast path does not run."""
    if encoder:
        return ENCODERS[config.model_type].read_spec(config) if config.model_type in ENCODERS else None
    family = FAMILIES.get(config.model_type)
    attending = LAYERS.issuperset(getattr(config, "layer_types", None) or ())
    return family.read_spec(config) if family and attending else None


def open_weights(spec: DecoderSpec, tensors: Tensors, partition: Partition = WHOLE) -> DecoderWeights:
    """The weights of a model with this spec, from these tensors. Raises ModelError."""
    return (ENCODERS if spec.both_ways else FAMILIES)[spec.family](spec, tensors, partition)


def load_spec(folder: Path, cache: Path, encoder: bool = False) -> DecoderSpec | None:
    """`spec_of` the model in `folder`. The result is kept in `cache`, if that can be written: transformers takes
    seconds to import and to read a config.

    Raises ModelError for a model that is not served.
    """
    file = spec_file(folder, cache, encoder)
    with contextlib.suppress(OSError, ValueError):  # not kept, or torn because the machine stopped
        data = file.read_bytes()
        return wire.unpack(DecoderSpec, data) if data else None
    from services.engine.families.config import load_config

    spec = spec_of(load_config(folder, encoder), encoder)
    with contextlib.suppress(OSError):
        write_atomically(file, wire.pack(spec) if spec else b"")
    return spec
