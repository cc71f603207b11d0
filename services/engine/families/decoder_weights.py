"""DecoderWeights: reads one partition of a decoder's weights, fused as its products run. Each family implements it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch.nn.functional import pad

from services.engine.parallel.layout import Partition, RowRange
from services.engine.spec import DecoderSpec
from services.engine.weights.quantized import GroupFormat, QuantizedWeight, Weight, stack
from services.engine.weights.tensors import Tensors


@dataclass(frozen=True, slots=True)
class Linear:
    """A product by `weight` [outputs, inputs], plus `bias` [outputs]."""

    weight: Weight
    bias: torch.Tensor | None = None
    names: tuple[str, ...] = ()  # of the weights in the checkpoint that it consists of

    @property
    def numbers(self) -> torch.Tensor:
        """The weight as a tensor of numbers."""
        return self.weight if isinstance(self.weight, torch.Tensor) else self.weight.dequantize()


@dataclass(frozen=True, slots=True)
class ExpertsWeights:
    """The weights of a layer's experts. `each` reads them one after another: `up` and `down` as of LayerWeights."""

    router: Linear  # the last output is that of `shared_gate`, if there is one
    each: Iterator[tuple[Linear, Linear]]
    correction: torch.Tensor | None = None  # [experts]


@dataclass(frozen=True, slots=True)
class LayerInputsWeights:
    """What a layer does with the numbers that it gets of a token; see DecoderSpec. Every partition has all of it."""

    gate: Linear
    down: Linear
    norm: Linear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer. Norms are Linears whose weight is a vector, and None where a layer has none."""

    attention_norm: Linear | None
    qkv: Linear  # queries, keys, values; without the latter where a layer has none of its own
    query_norm: torch.Tensor | None  # [head_dim], or of all heads
    key_norm: torch.Tensor | None
    output: Linear
    mlp_norm: Linear | None
    up: Linear | None  # gated: gate and up projection, one after the other; in a layer of experts, of the shared MLP
    down: Linear | None
    attention_post_norm: Linear | None = None  # of what attention computes, before that is added
    mlp_post_norm: Linear | None = None
    experts: ExpertsWeights | None = None
    sinks: torch.Tensor | None = None  # [heads]
    inputs: LayerInputsWeights | None = None
    scale: float = 1.0  # x is multiplied by it behind the layer, which has norms behind attention and MLP


class Table(NamedTuple):
    """A partition's rows of an embedding, from row `first` on."""

    rows: Weight  # [rows, hidden]
    first: int


class InputsOfLayersWeights(NamedTuple):
    """What the numbers that layers get of a token are made of; see DecoderSpec. Those of all layers are one after
    another."""

    table: Table  # [rows, layers * numbers]
    table_name: str
    projection: Linear  # [layers * numbers, hidden]
    norm: Linear  # of each layer's numbers


class DecoderWeights(ABC):
    """Reads parts of a decoder when they are asked for, in the dtype in which they are stored: this partition of each
    product, and norms whole."""

    interleaved: ClassVar[bool] = False  # whether pairs of rotary embeddings are neighbours in the checkpoint

    def __init__(self, spec: DecoderSpec, tensors: Tensors, partition: Partition) -> None:
        self._spec = spec
        self._tensors = tensors
        self._partition = partition
        self.head: torch.Tensor | None = None  # [numbers, hidden], in place of the vocabulary; see `heads`

    # What a family implements.

    @classmethod
    def published(cls, name: str) -> str:
        """The name by which transformers knows a tensor of a checkpoint, where a tool has written another."""
        return name

    @staticmethod
    @abstractmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """The spec of transformers' config; None for a variant of the family that the fast path does not run."""

    @abstractmethod
    def layer(self, index: int) -> LayerWeights:
        """This partition's part of layer `index` of the model."""

    @property
    @abstractmethod
    def embedding_name(self) -> str: ...

    @property
    @abstractmethod
    def last_norm_name(self) -> str: ...

    @property
    def positions_name(self) -> str:
        """The embedding of positions, for a family that learns them."""
        raise AssertionError(f"{self._spec.family} learns no positions")

    def second_text(self) -> torch.Tensor | None:
        """What tokens of the second text of a pair get besides [hidden]; None if the family tells no texts apart."""
        return None

    def inputs_of_layers(self) -> InputsOfLayersWeights:
        """For a family whose layers get numbers of each token."""
        raise AssertionError(f"{self._spec.family} has no inputs of layers")

    # What backends read.

    @property
    def stored(self) -> torch.dtype:
        """The dtype of the weights in the checkpoint, by the embedding's."""
        return self._read(self.embedding_name, rows=(0, 1)).dtype

    @property
    def vocabulary_name(self) -> str:
        """The weight that gives logits."""
        return self.embedding_name if self.tied else "lm_head.weight"

    @property
    def groups(self) -> dict[str, GroupFormat]:
        return self._tensors.groups

    def embedding(self) -> Table:
        """The embedding of tokens."""
        return self._table(self.embedding_name)

    @property
    def first_token(self) -> int:
        """The first row of `embedding`, without reading it."""
        return self._partition.range_of(self._tensors.rows(self.embedding_name))[0]

    def positions(self) -> Table:
        """The embedding of positions."""
        return self._table(self.positions_name)

    def last_norm(self) -> Linear:
        """The norm before the vocabulary. It scales the logits, too: those are a product of its output."""
        norm, scale = self._norm(self.last_norm_name), self._spec.logits_scale
        if scale == 1.0:
            return norm
        bias = None if norm.bias is None else norm.bias.to(torch.float32) * scale
        return Linear(norm.numbers.to(torch.float32) * scale, bias)

    @property
    def tied(self) -> bool:
        """Whether the vocabulary is the embedding."""
        return "lm_head.weight" not in self._tensors

    @property
    def head_is_embedding(self) -> bool:
        """Whether `vocabulary` gives the rows of the embedding."""
        return self.tied and self.head is None

    def vocabulary(self) -> Linear:
        """This partition's rows of the product that gives logits [vocab, hidden], or of `head`."""
        if self.head is not None:
            return Linear(self.head)
        return Linear(self._table(self.vocabulary_name).rows, names=(self.vocabulary_name,))

    # Helpers for families.

    def _read(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> torch.Tensor:
        return self._tensors.read(name, rows, columns)

    def _optional(self, name: str) -> torch.Tensor | None:
        return self._read(name) if name in self._tensors else None

    def _table(self, name: str) -> Table:
        rows = self._partition.range_of(self._tensors.rows(name))
        return Table(self._tensors.weight(name, rows), rows[0])

    def _norm(self, name: str) -> Linear:
        return Linear(self._norm_weight(name), self._optional(f"{name}.bias"))

    def _head_norm(self, name: str) -> torch.Tensor | None:
        """The weight of an RMS norm of each head, if there is one, in the order of `_paired`."""
        if f"{name}.weight" not in self._tensors:
            return None
        weight, columns = self._norm_weight(name), self._pair_columns()
        return weight[columns] if columns else weight

    def _norm_weight(self, name: str) -> torch.Tensor:
        """What a norm multiplies by."""
        return self._read(f"{name}.weight")

    def _stacked(self, names: list[str], rows: list[RowRange]) -> Linear:
        """Products of the same input, one below the other; of each these rows."""
        own = tuple(f"{name}.weight" for name in names)
        weights = [self._tensors.weight(name, part) for name, part in zip(own, rows, strict=True)]
        if f"{names[0]}.bias" not in self._tensors:
            return Linear(stack(weights), names=own)
        biases = [self._read(f"{name}.bias", part) for name, part in zip(names, rows, strict=True)]
        return Linear(stack(weights), torch.cat(biases), own)

    def _partial(self, name: str, columns: RowRange) -> Linear:
        """A product of this partition's inputs. The sum over partitions must have the bias once: the first has it."""
        bias = self._optional(f"{name}.bias") if self._partition.rank == 0 else None
        return Linear(self._tensors.weight(f"{name}.weight", columns=columns), bias, (f"{name}.weight",))

    def _halves(self, count: int) -> list[RowRange]:
        """This partition's rows of both halves of a tensor with 2 * `count` rows."""
        begin, end = self._partition.range_of(count)
        return [(begin, end), (count + begin, count + end)]

    def _paired(self, linear: Linear, rows: int) -> Linear:
        """A product whose first `rows` outputs are heads of queries and keys: if their rotary embeddings are partial or
        interleaved, the columns of each head in another order, in which both of a pair are half a head apart, as in
        embeddings over the whole head. Scores are the same in any order."""
        columns = self._pair_columns()
        if not columns:
            return linear
        order = torch.arange(len(linear.weight))
        order[:rows] = order[:rows].view(-1, len(columns))[:, columns].reshape(-1)
        weight = linear.weight.take(order) if isinstance(linear.weight, QuantizedWeight) else linear.weight[order]
        return Linear(weight, None if linear.bias is None else linear.bias[order], linear.names)

    def _pair_columns(self) -> list[int]:
        """The order of a head's columns for `_paired`; empty: as they are."""
        dim, rotated = self._spec.head_dim, 2 * len(self._spec.frequencies)
        if rotated == 0 or (rotated == dim and not self.interleaved):
            return []
        middle = (rotated + dim) // 2
        first, second = (0, rotated // 2, 1), (rotated // 2, rotated, 1)  # of pairs
        if self.interleaved:
            first, second = (0, rotated, 2), (1, rotated, 2)
        return [*range(*first), *range(rotated, middle), *range(*second), *range(middle, dim)]

    def _head_rows(self, queries: int = 1, layer: int = 0) -> RowRange:
        """The rows of this partition's KV heads in a layer; with `queries`, of the query heads that share them."""
        heads = self._spec.heads_of(layer)
        begin, end = self._partition.range_of(heads.kv_heads)
        return begin * queries * heads.head_dim, end * queries * heads.head_dim


def rotary_table(spec: DecoderSpec, length: int, local: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [length, head_dim / 2] in float32 of the positions below `length`, as transformers computes
    them; `local`: of the layers with a window, if those have others. Columns without a frequency turn nothing."""
    heads = spec.local_heads if local else None
    assert not spec.long_frequencies, "see DecoderSpec.for_length"
    frequencies = torch.tensor(spec.local_frequencies if local else spec.frequencies, dtype=torch.float32)
    scale = spec.local_rotary_scale if local else spec.rotary_scale
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    still = (0, (heads.head_dim if heads else spec.head_dim) // 2 - len(frequencies))
    cosines, sines = angles.cos() * scale, angles.sin() * scale
    return pad(cosines, still, value=1.0), pad(sines, still)
