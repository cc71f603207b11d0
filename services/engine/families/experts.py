"""Families with Llama's attention and experts instead of an MLP: Qwen2-MoE, Qwen3-MoE, OLMoE, Mixtral; and GLM-4.5,
dots.llm1 and ERNIE 4.5, whose experts are chosen by shares and a correction. GPT-OSS has a file of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import torch

from services.engine.families.decoder_weights import ExpertsWeights, LayerWeights, Linear
from services.engine.families.glm import Glm
from services.engine.families.llama import Llama
from services.engine.parallel.layout import RowRange
from services.engine.spec import DecoderSpec, ExpertsSpec


class Experts(Llama):
    """transformers 5 keeps the experts of a layer in one tensor [experts, outputs, inputs]; published checkpoints have
    a tensor for each expert, and so have converted GGUF files. Both are read, an expert at a time."""

    block: ClassVar[str] = "mlp"  # of a published checkpoint's layer
    shared: ClassVar[str] = "shared_expert"  # the MLP that all tokens go through
    gate_up_down: ClassVar[tuple[str, str, str]] = ("gate_proj", "up_proj", "down_proj")

    def layer(self, index: int) -> LayerWeights:
        experts = self._experts_of(f"model.layers.{index}") if self._spec.has_experts(index) else None
        return replace(super().layer(index), experts=experts)

    def _up(self, layer: str) -> Linear | None:
        if not self._routes(layer):
            return super()._up(layer)
        shared = self._shared
        names = [f"{layer}.mlp.{self.shared}.{name}_proj" for name in ("gate", "up")]
        return self._stacked(names, [shared, shared]) if shared else None

    def _down(self, layer: str) -> Linear | None:
        if not self._routes(layer):
            return super()._down(layer)
        return self._partial(f"{layer}.mlp.{self.shared}.down_proj", self._shared) if self._shared else None

    @property
    def _shared(self) -> RowRange | None:
        """This partition's part of the inner numbers of the shared MLP."""
        spec = self._spec.experts
        return self._partition.range_of(spec.shared) if spec and spec.shared else None

    def _routes(self, layer: str) -> bool:
        return self._spec.has_experts(int(layer.rpartition(".")[2]))

    def _experts_of(self, layer: str) -> ExpertsWeights:
        own = f"{layer}.{self.block}"
        if f"{own}.gate.weight" not in self._tensors:
            own = f"{layer}.mlp"
        rows = [self._read(f"{own}.gate.weight")]
        if self._spec.experts and self._spec.experts.shared_gate:
            rows.append(self._read(f"{own}.{self.shared}_gate.weight"))
        router = Linear(torch.cat(rows))
        name, correction = f"{own}.experts", self._correction(own)
        for parts in (self.gate_up_down, Experts.gate_up_down):
            if all(f"{name}.0.{part}.weight" in self._tensors for part in parts):
                return ExpertsWeights(router, self._single(name, parts), correction)
        return ExpertsWeights(router, self._fused(name), correction)

    def _correction(self, block: str) -> torch.Tensor | None:
        names = (f"{block}.{part}.e_score_correction_bias" for part in ("gate", "gate.moe_statics", "moe_statics"))
        found = next((name for name in names if name in self._tensors), None)
        return self._read(found).reshape(-1) if found else None

    def _single(self, name: str, parts: tuple[str, str, str]) -> Iterator[tuple[Linear, Linear]]:
        spec = self._spec.experts
        assert spec is not None
        inner = self._partition.range_of(spec.intermediate)
        for expert in range(spec.count):
            gate, up, down = (f"{name}.{expert}.{part}" for part in parts)
            yield self._stacked([gate, up], [inner, inner]), self._partial(down, inner)

    def _fused(self, name: str) -> Iterator[tuple[Linear, Linear]]:
        spec = self._spec.experts
        assert spec is not None
        begin, end = self._partition.range_of(spec.intermediate)
        for expert in range(spec.count):
            rows = expert, expert + 1
            up = self._read(f"{name}.gate_up_proj", rows)[0].view(2, spec.intermediate, -1)[:, begin:end]
            down = self._read(f"{name}.down_proj", rows)[0, :, begin:end]
            yield Linear(up.reshape(2 * (end - begin), -1)), Linear(down)


class Qwen2Moe(Experts):
    """Some layers may have an MLP. Experts have another beside them, with a share."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        spec = Qwen3Moe.read_spec(config)
        if spec is None or spec.experts is None:
            return None
        experts = replace(spec.experts, shared=config.shared_expert_intermediate_size, shared_gate=True)
        return replace(spec, experts=experts)


class Qwen3Moe(Experts):
    """Some layers may have an MLP."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        step, dense = config.decoder_sparse_step, config.mlp_only_layers
        layers = tuple(i not in dense and (i + 1) % step == 0 for i in range(config.num_hidden_layers))
        return with_experts(config, config.moe_intermediate_size, config.norm_topk_prob, layers)


class Olmoe(Experts):
    """The norms of queries and keys run over all heads."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama; None for clipped queries, keys and values, too."""
        if config.clip_qkv is not None:
            return None
        spec = with_experts(config, config.intermediate_size, config.norm_topk_prob)
        return replace(spec, norms_all_heads=True) if spec else None


class Mixtral(Experts):
    """Published checkpoints have names of their own; those that GPTQModel and llm-compressor write may not."""

    block = "block_sparse_moe"
    gate_up_down = ("w1", "w3", "w2")

    @classmethod
    def published(cls, name: str) -> str:
        for block in (Experts.block, cls.block):
            layer, found, expert = name.partition(f".{block}.experts.")
            number, _, part = expert.partition(".")
            for own, theirs in zip(cls.gate_up_down, Experts.gate_up_down, strict=True):
                if found and part == f"{theirs}.weight":
                    return f"{layer}.{cls.block}.experts.{number}.{own}.weight"
        return name

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        return with_experts(config, config.intermediate_size, True)


def with_experts(config: Any, intermediate: int, normalised: bool, layers: tuple[bool, ...] = ()) -> DecoderSpec | None:
    """Llama's spec with experts; see ExpertsSpec. None where Llama's is."""
    spec = Llama.read_spec(config)
    if spec is None:
        return None
    experts = ExpertsSpec(config.num_experts, config.num_experts_per_tok, intermediate, normalised, layers)
    return replace(spec, experts=experts)


class Dots1(Experts):
    """The first layers have an MLP, the others experts with shares that are sigmoids, and an MLP that all tokens go
    through."""

    shared = "shared_experts"

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama; also None for experts of which some groups are chosen."""
        return _with_sigmoids(Llama.read_spec(config), config)


class Glm4Moe(Dots1):
    """GLM-4.5: experts and MLPs as in dots.llm1, and partial rotary embeddings."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        return _with_sigmoids(Glm.read_spec(config), config)


class Ernie45Moe(Experts):
    """Some layers have experts, the others an MLP. Pairs of rotary embeddings are neighbours."""

    shared = "shared_experts"
    interleaved = True

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
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
        return spec and replace(spec, experts=experts)


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
    return replace(spec, experts=experts)
