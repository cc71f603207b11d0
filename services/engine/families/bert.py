"""BERT and the encoders with the same layers: RoBERTa, XLM-RoBERTa, CamemBERT."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from services.engine.families.decoder_weights import DecoderWeights, LayerWeights, Table
from services.engine.families.llama import ACTIVATIONS, sizes_of
from services.engine.parallel.layout import Partition
from services.engine.spec import Activation, DecoderSpec
from services.engine.weights.tensors import Tensors
from services.errors import ModelError

WORDS = "embeddings.word_embeddings.weight"
PREFIXES = ("", "bert.", "roberta.", "model.")  # of checkpoints


class Bert(DecoderWeights):
    """Learned positions, and LayerNorms of the sums behind attention and MLP: the one behind a half is here the norm
    before the next half, which x becomes. The first one is that of the embeddings."""

    def __init__(self, spec: DecoderSpec, tensors: Tensors, partition: Partition) -> None:
        super().__init__(spec, tensors, partition)
        self._prefix = next((prefix for prefix in PREFIXES if prefix + WORDS in tensors), "")
        for layer in range(spec.layers):
            self._check(f"encoder.layer.{layer}.attention.self.query", spec.hidden)
            self._check(f"encoder.layer.{layer}.intermediate.dense", spec.intermediate)
            self._check(f"encoder.layer.{layer}.output.dense", spec.hidden)

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See DecoderWeights. None for other positions and activations."""
        activations = {**ACTIVATIONS, "gelu": Activation.GELU_ERF, "gelu_new": Activation.GELU}
        activation = activations.get(config.hidden_act)
        positions = getattr(config, "position_embedding_type", "absolute")
        if activation is None or positions not in ("absolute", None):
            return None
        return replace(
            sizes_of(config),
            layer_norm=True,
            gated=False,
            activation=activation,
            both_ways=True,
            norms_sums=True,
        )

    def layer(self, index: int) -> LayerWeights:
        layer = f"{self._prefix}encoder.layer.{index}"
        before = f"{self._prefix}encoder.layer.{index - 1}.output" if index else f"{self._prefix}embeddings"
        rows = (0, self._spec.hidden)
        return LayerWeights(
            attention_norm=self._norm(f"{before}.LayerNorm"),
            qkv=self._stacked([f"{layer}.attention.self.{name}" for name in ("query", "key", "value")], [rows] * 3),
            query_norm=None,
            key_norm=None,
            output=self._partial(f"{layer}.attention.output.dense", rows),
            mlp_norm=self._norm(f"{layer}.attention.output.LayerNorm"),
            up=self._stacked([f"{layer}.intermediate.dense"], [(0, self._spec.intermediate)]),
            down=self._partial(f"{layer}.output.dense", (0, self._spec.intermediate)),
        )

    @property
    def embedding_name(self) -> str:
        return self._prefix + WORDS

    @property
    def last_norm_name(self) -> str:
        return f"{self._prefix}encoder.layer.{self._spec.layers - 1}.output.LayerNorm"

    @property
    def positions_name(self) -> str:
        return f"{self._prefix}embeddings.position_embeddings.weight"

    @property
    def tied(self) -> bool:
        return True

    def positions(self) -> Table:
        """The embedding of positions plus that of a first text, which each token has."""
        rows, types = self._read(self.positions_name).float(), self._types()
        return Table(rows[self._first_position() :] + types[0], 0)

    def second_text(self) -> torch.Tensor | None:
        types = self._types()
        return types[1] - types[0] if len(types) > 1 else None

    def _types(self) -> torch.Tensor:
        return self._read(f"{self._prefix}embeddings.token_type_embeddings.weight").float()

    def _first_position(self) -> int:
        return 0

    def _check(self, name: str, outputs: int) -> None:
        found = self._tensors.rows(f"{self._prefix}{name}.weight")
        if found != outputs:
            raise ModelError(f"{self._prefix}{name}.weight has {found} rows, config.json asks for {outputs}")


class Roberta(Bert):
    """Positions begin behind the padding token's id, which is 1."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """See Bert. None for another id of padding."""
        return Bert.read_spec(config) if config.pad_token_id == 1 else None

    def _first_position(self) -> int:
        return 2
