"""GPT-OSS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from services.engine.families.decoder_weights import ExpertsWeights, LayerWeights, Linear
from services.engine.families.experts import Experts, with_experts
from services.engine.parallel.layout import RowRange
from services.engine.spec import DecoderSpec
from services.engine.weights.quantized import QuantizedWeight, Weight

SWIGLU_ALPHA = 1.702  # of configs without the field: transformers before 5.23 has it in the layer's code
SWIGLU_LIMIT = 7.0


class GptOss(Experts):
    """Llama's attention with sinks, and windows in every other layer; experts with biases and a clamped SwiGLU.

    Checkpoints have one tensor for the experts of a layer, [experts, inputs, outputs], in which gates and the outputs
    that they multiply alternate."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Llama; None without a limit of the SwiGLU, too."""
        spec = with_experts(config, config.intermediate_size, True)
        limit = getattr(config, "swiglu_limit", SWIGLU_LIMIT)
        if spec is None or not limit > 0:
            return None
        alpha = getattr(config, "swiglu_alpha", SWIGLU_ALPHA)
        return replace(spec, sinks=True, swiglu_alpha=alpha, swiglu_limit=limit)

    def layer(self, index: int) -> LayerWeights:
        dim = self._spec.head_dim
        first, end = self._head_rows(self._spec.queries_per_kv)
        sinks = self._read(f"model.layers.{index}.self_attn.sinks", (first // dim, end // dim))
        return replace(super().layer(index), sinks=sinks)

    def _experts_of(self, layer: str) -> ExpertsWeights:
        router = f"{layer}.mlp.router"
        return ExpertsWeights(
            Linear(self._read(f"{router}.weight"), self._read(f"{router}.bias")), self._each(f"{layer}.mlp.experts")
        )

    def _each(self, name: str) -> Iterator[tuple[Linear, Linear]]:
        spec = self._spec.experts
        assert spec is not None
        inner = self._partition.range_of(spec.intermediate)
        order = _halves(spec.intermediate, inner)
        names = f"{name}.gate_up_proj", f"{name}.down_proj"
        for expert in range(spec.count):
            up, down = self._weights(name, expert, inner)
            up_bias, down_bias = (self._read(f"{part}_bias", (expert, expert + 1))[0] for part in names)
            up = up.take(order) if isinstance(up, QuantizedWeight) else up[order]
            yield (
                Linear(up, up_bias[order], names[:1]),
                Linear(down, None if self._partition.rank else down_bias, names[1:]),
            )

    def _weights(self, name: str, expert: int, inner: RowRange) -> tuple[Weight, Weight]:
        """Weights [outputs, inputs]: all outputs of the first product, and these inputs of the second. Quantized ones
        have a name for each expert."""
        if f"{name}.{expert}.down_proj.weight" in self._tensors:
            up = self._tensors.weight(f"{name}.{expert}.gate_up_proj.weight")
            return up, self._tensors.weight(f"{name}.{expert}.down_proj.weight", columns=inner)
        own = expert, expert + 1
        up, down = (self._read(f"{name}.{part}_proj", own)[0].t() for part in ("gate_up", "down"))
        return up, down[:, slice(*inner)]


def _halves(intermediate: int, inner: RowRange) -> torch.Tensor:
    """The outputs of a rank: gates, and then what they multiply, which alternate."""
    both = torch.arange(2 * intermediate).view(-1, 2).t()
    return both[:, slice(*inner)].reshape(-1)
