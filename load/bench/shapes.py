"""Shapes of real models, which random weights fill, and what is measured of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from transformers import AutoConfig

from services.engine.weights.quantized import GroupFormat, Values


@dataclass(frozen=True, slots=True)
class Plan:
    """The iterations at which a model is measured, if they fit; and the config of a shape.

    `initiations`: all tokens of an iteration, in prompts as long as each context. `mixed`: increments, and prompts
    beside them. Goals are shares of the floor's rate; None: there is none.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    contexts: tuple[int, ...] = (512,)
    batches: tuple[int, ...] = (1, 8, 32)
    initiations: tuple[int, ...] = (512, 2048)
    mixed: tuple[tuple[int, int], ...] = ((30, 1),)
    max_model_len: int = 0
    increment_goal: float | None = None
    initiation_goal: float | None = None

    def config(self) -> Any:
        """transformers' config of a Llama."""
        return AutoConfig.for_model("llama", **self.fields)


DEFAULT_PLAN = Plan()  # of a model that is no shape

# the shape of Llama-3.2-1B with a smaller vocabulary, 1.07 billion weights
LLAMA_1B = Plan(
    {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 49_152,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
        "tie_word_embeddings": True,
    },
    batches=(1, 2, 4, 8, 32),
    max_model_len=8192,
)

# config.json of HuggingFaceTB/SmolLM2-135M
SMOLLM2_135M = replace(
    LLAMA_1B,
    fields=LLAMA_1B.fields
    | {
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
    },
)

# the shape of Qwen2.5-0.5B: a large vocabulary beside small layers
QWEN_500M = replace(
    LLAMA_1B,
    fields=LLAMA_1B.fields
    | {
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151_936,
    },
    batches=(1, 8, 32),
)

# the shape of Llama-3.2-3B
LLAMA_3B = replace(
    LLAMA_1B,
    fields=LLAMA_1B.fields
    | {
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "vocab_size": 128_256,
        "head_dim": 128,
    },
)

# config.json of meta-llama/Meta-Llama-3-8B
LLAMA_3_8B = Plan(
    LLAMA_1B.fields
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "intermediate_size": 14_336,
        "vocab_size": 128_256,
        "tie_word_embeddings": False,
    },
    contexts=(512, 4096),
    batches=(1, 8, 32, 128, 256),
    initiations=(2048, 8192),
    mixed=((32, 1), (128, 4)),
    max_model_len=8192,
    increment_goal=0.8,
    initiation_goal=0.65,
)

# runs anywhere in seconds: to try the bench; its figures mean nothing
TINY = replace(
    LLAMA_3_8B,
    fields={
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 1024,
        "vocab_size": 320,
        "max_position_embeddings": 1024,
    },
    contexts=(32,),
    batches=(1, 4),
    initiations=(64, 128),
    mixed=((4, 1),),
    max_model_len=1024,
)

SHAPES = {
    "smollm2-135m": SMOLLM2_135M,
    "qwen-500m": QWEN_500M,
    "llama-1b": LLAMA_1B,
    "llama-3b": LLAMA_3B,
    "llama-3-8b": LLAMA_3_8B,
    "tiny": TINY,
}

# in which random weights are quantized, by the name of a type of GGUF files or of a method with the same groups
FORMATS = {
    "Q4_1": GroupFormat(4, 32),
    "Q5_1": GroupFormat(5, 32),
    "IQ4_NL": GroupFormat(4, 32, Values.IQ4_NL),
    "gptq": GroupFormat(4, 128),
    "fp8": GroupFormat(8, 128, Values.E4M3),
}
