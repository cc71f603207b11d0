"""Configurations of real models, and what is measured of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transformers import AutoConfig


@dataclass(frozen=True, slots=True)
class Configuration:
    """A model's config, and the iterations at which it is measured, if they fit.

    `initiations`: all tokens of an iteration, in prompts as long as each context. Goals are shares of the floor's rate.
    `no_goal`: batches of increments that have no goal. `alone`: batches of section 6.1. `most`: max batch sizes of
    section 6.2, the most important ones first. `trace`: requests of the comparison with transformers.
    """

    family: str
    fields: dict[str, Any]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    initiations: tuple[int, ...] = (2048, 8192)
    mixed: tuple[tuple[int, int], ...] = ((32, 1), (128, 4))  # increments, and prompts beside them
    max_model_len: int = 8192
    increment_goal: float = 0.8
    initiation_goal: float = 0.65
    no_goal: frozenset[int] = field(default_factory=frozenset)
    alone: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    most: tuple[int, ...] = (8, 32, 128, 1, 16, 64)
    trace: int = 64

    def config(self) -> Any:
        """transformers' config."""
        return AutoConfig.for_model(self.family, **self.fields)


# Table 1 of the paper; GPT-3's vocabulary and lengths of 2,048 (section 6, Models)
GPT_13B = Configuration(
    "gpt2",
    {"n_layer": 40, "n_embd": 5120, "n_head": 40, "n_positions": 2048, "vocab_size": 50_257},
    contexts=(512,),
    batches=(1, 8, 32, 128),
    max_model_len=2048,
)

# config.json of meta-llama/Meta-Llama-3-8B
LLAMA_3_8B = Configuration(
    "llama",
    {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14_336,
        "vocab_size": 128_256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
        "tie_word_embeddings": False,
    },
    contexts=(512, 4096),
    batches=(1, 8, 32, 128),
)

# config.json of Qwen/Qwen3-0.6B
QWEN3_0_6B = Configuration(
    "qwen3",
    {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 151_936,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "tie_word_embeddings": True,
    },
    contexts=(512, 4096),
    batches=(1, 8, 32, 128, 256),
    initiation_goal=0.5,
    no_goal=frozenset({1}),
)

# runs anywhere in seconds: to try the bench; its figures mean nothing
TINY = Configuration(
    "llama",
    {
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
    alone=(1, 4),
    most=(4, 1),
    trace=6,
)

CONFIGURATIONS = {"gpt-13b": GPT_13B, "llama-3-8b": LLAMA_3_8B, "qwen3-0.6b": QWEN3_0_6B, "tiny": TINY}
