"""GPT-2."""

from __future__ import annotations

from typing import Any

import torch

from services.engine.families.decoder_weights import DecoderWeights, LayerWeights, Linear
from services.engine.parallel.layout import Partition, RowRange
from services.engine.spec import Activation, DecoderSpec
from services.engine.weights.tensors import Tensors


class Gpt2(DecoderWeights):
    """Layer norms, learned positions, an MLP with gelu. Its checkpoints keep weights as [inputs, outputs]."""

    def __init__(self, spec: DecoderSpec, tensors: Tensors, partition: Partition) -> None:
        super().__init__(spec, tensors, partition)
        self._root = "transformer." if "transformer.wte.weight" in tensors else ""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """None for another activation than GELU, and for attention that is not scaled or scaled by the layer."""
        if (
            config.activation_function != "gelu_new"
            or config.scale_attn_by_inverse_layer_idx
            or not config.scale_attn_weights
        ):
            return None
        return DecoderSpec(
            family=config.model_type,
            layers=config.n_layer,
            hidden=config.n_embd,
            heads=config.n_head,
            kv_heads=config.n_head,
            head_dim=config.n_embd // config.n_head,
            intermediate=config.n_inner or 4 * config.n_embd,
            vocab=config.vocab_size,
            epsilon=config.layer_norm_epsilon,
            layer_norm=True,
            gated=False,
            activation=Activation.GELU,
        )

    @property
    def embedding_name(self) -> str:
        return f"{self._root}wte.weight"

    @property
    def positions_name(self) -> str:
        return f"{self._root}wpe.weight"

    @property
    def last_norm_name(self) -> str:
        return f"{self._root}ln_f"

    def layer(self, index: int) -> LayerWeights:
        layer, hidden = f"{self._root}h.{index}", self._spec.hidden
        heads, inner = self._head_rows(), self._partition.range_of(self._spec.intermediate)
        thirds = [(third * hidden + heads[0], third * hidden + heads[1]) for third in range(3)]
        return LayerWeights(
            attention_norm=self._norm(f"{layer}.ln_1"),
            qkv=self._outputs(f"{layer}.attn.c_attn", thirds),
            query_norm=None,
            key_norm=None,
            output=self._inputs(f"{layer}.attn.c_proj", heads),
            mlp_norm=self._norm(f"{layer}.ln_2"),
            up=self._outputs(f"{layer}.mlp.c_fc", [inner]),
            down=self._inputs(f"{layer}.mlp.c_proj", inner),
        )

    def _outputs(self, name: str, parts: list[RowRange]) -> Linear:
        """These outputs of a product, one part below the other."""
        weights = [self._read(f"{name}.weight", columns=part).t() for part in parts]
        return Linear(torch.cat(weights), torch.cat([self._read(f"{name}.bias", part) for part in parts]))

    def _inputs(self, name: str, part: RowRange) -> Linear:
        """A product of these inputs; see DecoderWeights._partial."""
        bias = self._read(f"{name}.bias") if self._partition.rank == 0 else None
        return Linear(self._read(f"{name}.weight", part).t(), bias)
