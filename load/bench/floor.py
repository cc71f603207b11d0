"""The floor: the least time that an iteration can take on a machine with these rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from load.bench.rates import MachineRates
from services.engine.batch.kv_cache import scale_numbers
from services.engine.families.llama import windows_of


@dataclass(frozen=True, slots=True)
class Matrix:
    """`count` weight matrices of this size in all layers together."""

    inputs: int
    outputs: int
    count: int

    @property
    def elements(self) -> int:
        return self.inputs * self.outputs * self.count


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """What a layer's attention computes, and what it keeps of each token. `head_dim`: of queries, keys and values."""

    heads: int
    kv_heads: int
    head_dim: int
    kv_bytes: int  # of one head's key or value of a token
    window: int = 0  # see DecoderSpec
    has_keys: bool = True  # else it attends to those that another layer has read


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The matrix products of a model, and the attention of each layer. The `last` matrices are those of layers behind
    the last one that has keys. Of the matrices of `experts`, a token is multiplied by `routed[0]` in `routed[1]`."""

    projections: tuple[Matrix, ...]  # all but the last ones
    output: Matrix  # from the last hidden state to the vocabulary
    weight_bytes: float  # of one of the weights
    attention: tuple[LayerAttention, ...]
    last: tuple[Matrix, ...] = ()
    experts: tuple[Matrix, ...] = ()
    routed: tuple[int, int] = (1, 1)

    @classmethod
    def of(cls, config: Any, weight_bytes: float, kept: torch.dtype) -> ModelShape:
        """From a text model's config, with weights of so many bytes and KV in this dtype; no weights are
        created.

        Raises ValueError for weights that are neither an embedding, nor a projection of every token, nor experts.
        """
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        output = model.get_output_embeddings()
        layers = range(config.num_hidden_layers)
        behind = tuple(f".layers.{i}." for i in layers if not _has_keys(config, i))  # these are the last ones
        sizes: Counter[tuple[int, int]] = Counter()
        last: Counter[tuple[int, int]] = Counter()
        experts: Counter[tuple[int, int]] = Counter()
        routed = 1  # experts of a layer
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Embedding) or module is output:
                continue
            for own, parameter in module.named_parameters(recurse=False):
                if parameter.ndim < 2 or own.endswith("bias"):
                    continue
                kind = type(module).__name__
                if kind.endswith("Experts") and parameter.ndim == 3:
                    routed, outputs, inputs = parameter.shape
                    experts[inputs, outputs] += routed
                    continue
                if not isinstance(module, torch.nn.Linear | Conv1D) and not kind.endswith("Router"):
                    raise ValueError(f"{config.model_type}: the operations of {name} are not known")
                (last if any(part in name for part in behind) else sizes)[_size(module)] += 1
        return cls(
            projections=tuple(Matrix(*size, count) for size, count in sizes.items()),
            output=Matrix(*_size(output), 1),
            weight_bytes=weight_bytes,
            attention=tuple(_attention_of(config, i, kept) for i in layers),
            last=tuple(Matrix(*size, count) for size, count in last.items()),
            experts=tuple(Matrix(*size, count) for size, count in experts.items()),
            routed=(config.num_experts_per_tok, routed) if experts else (1, 1),
        )

    @property
    def stored(self) -> int:
        """The bytes of all weights that an iteration of many tokens reads."""
        matrices = (*self.projections, *self.last, *self.experts, self.output)
        return round(sum(matrix.elements for matrix in matrices) * self.weight_bytes)

    @property
    def widest(self) -> tuple[int, int]:
        """(inputs, outputs) of the largest projections of a layer; those of one size count as one product."""
        matrix = max((*self.projections, *self.last), key=lambda matrix: matrix.elements)
        return matrix.inputs, matrix.outputs * max(1, matrix.count // len(self.attention))


def _attention_of(config: Any, index: int, kept: torch.dtype) -> LayerAttention:
    own, windows = config.per_layer_config[index], windows_of(config)
    heads = own.num_attention_heads
    head_dim = getattr(own, "head_dim", None) or own.hidden_size // heads
    kv_heads = getattr(own, "num_key_value_heads", None) or heads
    kv_bytes = (head_dim + scale_numbers(kept)) * int(kept.itemsize)
    window = windows[index] if windows else 0
    return LayerAttention(heads, kv_heads, head_dim, kv_bytes, window, _has_keys(config, index))


def _has_keys(config: Any, index: int) -> bool:
    shared: int = getattr(config, "num_kv_shared_layers", None) or 0
    return index < int(config.num_hidden_layers) - shared


def _size(module: Any) -> tuple[int, int]:
    """(inputs, outputs); a Conv1D of GPT-2 stores its weight transposed."""
    rows, columns = module.weight.shape
    return (rows, columns) if isinstance(module, Conv1D) else (columns, rows)


Kind = Literal["projections", "output", "attention"]
KINDS: tuple[Kind, ...] = ("projections", "output", "attention")


@dataclass(frozen=True, slots=True)
class Span:
    """What an iteration computes of a request: `tokens` tokens after `context` earlier ones, and whether it samples."""

    context: int
    tokens: int
    samples: bool = True

    def keys(self, window: int = 0) -> int:
        """The number of keys that its queries attend to in a layer with this window, summed over the queries."""
        all_of_them = self.tokens if not window else min(self.tokens, max(0, window - self.context))
        attended = all_of_them * self.context + all_of_them * (all_of_them + 1) // 2
        return attended + (self.tokens - all_of_them) * window

    def positions(self, window: int = 0) -> int:
        """The number of keys that any of its queries attends to, its own tokens included."""
        seen = self.context + self.tokens
        return min(seen, window + self.tokens - 1) if window else seen


@dataclass(frozen=True, slots=True)
class Operation:
    """`bytes` moved between memory and processor, and `flops` of its products."""

    kind: Kind
    bytes: int
    flops: int


def operations(shape: ModelShape, spans: Sequence[Span]) -> Iterable[Operation]:
    """The operations of an iteration over these spans.

    A projection reads its weights once. The last ones are multiplied by the rows that sample, as is the output matrix.
    Of the experts, those are read that some token goes to: as many as are expected if all are equally likely. Attention
    reads each key and value of a request once (those of the iteration are written instead) and takes 4 * head_dim
    operations for each head, query and key, in layers behind the last one that has keys for the queries that sample.
    Activations, norms, rotary embeddings, the embedding's rows and the sampler are left out.
    """
    tokens = sum(span.tokens for span in spans)
    for matrix in shape.projections:
        yield _product("projections", shape, matrix, tokens)
    chosen, count = shape.routed
    read = 1.0 - (1.0 - chosen / count) ** tokens
    for matrix in shape.experts:
        moved = round(read * matrix.elements * shape.weight_bytes)
        yield Operation("projections", moved, 2 * tokens * matrix.elements * chosen // count)
    if sampled := sum(span.samples for span in spans):
        for matrix in shape.last:
            yield _product("projections", shape, matrix, sampled)
        yield _product("output", shape, shape.output, sampled)
    layers = Counter(shape.attention)
    for span in spans:
        yield Operation(
            "attention",
            sum(count * _bytes_read(layer, span) for layer, count in layers.items()),
            sum(count * _scored(layer, span) * 4 * layer.heads * layer.head_dim for layer, count in layers.items()),
        )


def _bytes_read(layer: LayerAttention, span: Span) -> int:
    return span.positions(layer.window) * 2 * layer.kv_heads * layer.kv_bytes if layer.has_keys else 0


def _scored(layer: LayerAttention, span: Span) -> int:
    """How many keys its queries attend to, over all queries that are computed."""
    if layer.has_keys:
        return span.keys(layer.window)
    return Span(span.context + span.tokens - 1, 1).keys(layer.window) if span.samples else 0


def _product(kind: Kind, shape: ModelShape, matrix: Matrix, rows: int) -> Operation:
    return Operation(kind, round(matrix.elements * shape.weight_bytes), 2 * rows * matrix.elements)


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds by kind of operation, and the seconds that moving all the bytes would take alone."""

    by_kind: dict[Kind, float]
    moving: float

    @property
    def seconds(self) -> float:
        return sum(self.by_kind.values())


def floor(shape: ModelShape, rates: MachineRates, iterations: Iterable[Sequence[Span]]) -> Floor:
    """The floor of all these iterations together: the sum over operations of max(bytes / bandwidth, flops / the best
    rate of any row count)."""
    by_kind: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
    moved = 0
    for spans in iterations:
        for operation in operations(shape, spans):
            by_kind[operation.kind] += seconds(operation, rates)
            moved += operation.bytes
    return Floor(by_kind, moved / rates.bandwidth)


def seconds(operation: Operation, rates: MachineRates) -> float:
    """The least time of this operation."""
    return max(operation.bytes / rates.bandwidth, operation.flops / rates.best)
