"""The floor: the least time that an iteration can take on a machine with these rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from load.bench.engine.rates import MachineRates
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
class ModelShape:
    """The matrix products of a model, and what it keeps of each token. `head_dim`: of queries, keys and values.
    `windows`: see DecoderSpec."""

    layers: int
    projections: tuple[Matrix, ...]
    output: Matrix  # from the last hidden state to the vocabulary
    heads: int
    kv_heads: int
    head_dim: int
    weight_bytes: int  # of one number of the weights
    kv_bytes: int  # of one number of keys and values
    windows: tuple[int, ...] = ()

    @classmethod
    def of(cls, config: Any, weights: torch.dtype, kept: torch.dtype) -> ModelShape:
        """From a text model's config, with weights and KV in these dtypes; no weights are created.

        Raises ValueError for weights that are neither an embedding nor a projection of every token.
        """
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        output = model.get_output_embeddings()
        sizes: Counter[tuple[int, int]] = Counter()
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Embedding) or module is output:
                continue
            for parameter in module.parameters(recurse=False):
                if parameter.ndim < 2:
                    continue
                if not isinstance(module, torch.nn.Linear | Conv1D):
                    raise ValueError(f"{config.model_type}: the operations of {name} are not known")
                sizes[_size(module)] += 1
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            projections=tuple(Matrix(*size, count) for size, count in sizes.items()),
            output=Matrix(*_size(output), 1),
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            weight_bytes=int(weights.itemsize),
            kv_bytes=int(kept.itemsize),
            windows=windows_of(config),
        )

    @property
    def stored(self) -> int:
        """The bytes of all weights that an iteration reads."""
        return sum(matrix.elements for matrix in (*self.projections, self.output)) * self.weight_bytes

    @property
    def widest(self) -> tuple[int, int]:
        """(inputs, outputs) of the largest projections of a layer; those of one size count as one product."""
        matrix = max(self.projections, key=lambda matrix: matrix.elements)
        return matrix.inputs, matrix.outputs * max(1, matrix.count // self.layers)


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

    A projection reads its weights once. The output matrix is multiplied by the rows that sample. Attention reads each
    key and value of a request once (those of the iteration are written instead) and takes 4 * head_dim operations for
    each head, query and key. Activations, norms, rotary embeddings, the embedding's rows and the sampler are left out.
    """
    tokens = sum(span.tokens for span in spans)
    for matrix in shape.projections:
        yield _product("projections", shape, matrix, tokens)
    if sampled := sum(span.samples for span in spans):
        yield _product("output", shape, shape.output, sampled)
    layers = Counter(shape.windows or [0] * shape.layers)
    for span in spans:
        positions = sum(count * span.positions(window) for window, count in layers.items())
        keys = sum(count * span.keys(window) for window, count in layers.items())
        yield Operation(
            "attention",
            positions * 2 * shape.kv_heads * shape.head_dim * shape.kv_bytes,
            keys * 4 * shape.heads * shape.head_dim,
        )


def _product(kind: Kind, shape: ModelShape, matrix: Matrix, rows: int) -> Operation:
    return Operation(kind, matrix.elements * shape.weight_bytes, 2 * rows * matrix.elements)


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
