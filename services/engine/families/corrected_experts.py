"""Families whose experts are chosen by shares and a correction: GLM-4.5, dots.llm1 and ERNIE 4.5 with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.engine.families.experts import Experts
from services.engine.families.llama import Llama
from services.engine.families.phi3 import LONG_ROPE
from services.engine.spec import DecoderSpec, ExpertsSpec


class Dots1(Experts):
    """The first layers have an MLP, the others experts with shares that are sigmoids, and an MLP that all tokens go
    through."""

    shared = "shared_experts"

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama; also None for experts of which some groups are chosen."""
        return _with_sigmoids(Llama.read_spec(config), config)


class Glm4Moe(Dots1):
    """The same with partial rotary embeddings."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Dots1."""
        long = config.rope_parameters["rope_type"] == LONG_ROPE
        return _with_sigmoids(None if long else Llama.read_rotary_spec(config), config)


class Ernie45Moe(Experts):
    """Some layers have experts, the others an MLP. Pairs of rotary embeddings are neighbours."""

    shared = "shared_experts"
    interleaved = True

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama."""
        spec = None if config.use_bias else Llama.read_spec(config)
        first, last, step = config.moe_layer_start_index, config.moe_layer_end_index, config.moe_layer_interval
        experts = ExpertsSpec(
            count=config.moe_num_experts,
            chosen=config.moe_k,
            intermediate=config.moe_intermediate_size,
            normalised=True,
            layers=tuple(first <= i <= last and (i + 1) % step == 0 for i in range(config.num_hidden_layers)),
            shared=config.moe_intermediate_size * config.moe_num_shared_experts,
        )
        return spec and replace(spec, family=config.model_type, experts=experts)


def _with_sigmoids(spec: DecoderSpec | None, config: Any) -> DecoderSpec | None:
    if spec is None or (config.n_group or 1) > 1:
        return None
    experts = ExpertsSpec(
        count=config.n_routed_experts,
        chosen=config.num_experts_per_tok,
        intermediate=config.moe_intermediate_size,
        normalised=bool(config.norm_topk_prob),
        layers=tuple(i >= config.first_k_dense_replace for i in range(config.num_hidden_layers)),
        shared=config.moe_intermediate_size * config.n_shared_experts,
        sigmoid=True,
        scale=config.routed_scaling_factor,
    )
    return replace(spec, family=config.model_type, experts=experts)
