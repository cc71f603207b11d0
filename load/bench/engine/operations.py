"""What an iteration must read, write and compute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from load.bench.engine.model_shape import Matrix, ModelShape

Kind = Literal["projections", "output", "attention"]
KINDS: tuple[Kind, ...] = ("projections", "output", "attention")


@dataclass(frozen=True, slots=True)
class Span:
    """What an iteration computes of a request: `tokens` behind `context` computed ones; it samples or not."""

    context: int
    tokens: int
    samples: bool = True

    @property
    def keys(self) -> int:
        """Keys that its queries look at, summed over its queries: each sees those before it and its own."""
        return self.tokens * self.context + self.tokens * (self.tokens + 1) // 2


@dataclass(frozen=True, slots=True)
class Operation:
    """`bytes` between memory and processor, `flops` with so many `rows`; 0 rows: at any row count."""

    kind: Kind
    bytes: int
    flops: int
    rows: int


def operations(shape: ModelShape, spans: Sequence[Span]) -> Iterable[Operation]:
    """The operations of an iteration over these spans.

    A projection reads its weights once. The output matrix is multiplied with rows that sample. Attention reads each
    key and value of a request once (those of the iteration are written instead) and does 4 * head_dim operations for
    each head, query and key. Left out: activations, norms, rotary embeddings, the embedding's rows, the sampler.
    """
    tokens = sum(span.tokens for span in spans)
    for matrix in shape.projections:
        yield _product("projections", shape, matrix, tokens)
    if sampled := sum(span.samples for span in spans):
        yield _product("output", shape, shape.output, sampled)
    for span in spans:
        yield Operation(
            "attention",
            shape.layers * (span.context + span.tokens) * 2 * shape.kv_heads * shape.head_dim * shape.kv_bytes,
            shape.layers * span.keys * 4 * shape.heads * shape.head_dim,
            0,
        )


def _product(kind: Kind, shape: ModelShape, matrix: Matrix, rows: int) -> Operation:
    return Operation(kind, matrix.elements * shape.weight_bytes, 2 * rows * matrix.elements, rows)
