"""PackedModel: a rank's weights as the kernels read them, as tensors. The structures that point at them are made from
it, so it can be pickled, and unpickled where the tensors lie at other addresses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

from services.engine.backends.cpu.structs import Experts, Groups, InputsOfLayers, Layer, LayerInputs, Matrix, Norm
from services.engine.parallel.layout import Layout
from services.engine.spec import DecoderSpec, ExpertsSpec
from services.engine.weights.quantized import SUPER, QuantizedWeight, Weight

NO_WINDOW = 1 << 30  # more than there are positions, and differences of it and positions fit in 32 bits
Rotary = tuple[torch.Tensor, torch.Tensor]  # cosines and sines, float32


class WeightKind(IntEnum):
    """How a matrix is kept; Packer checks that the kernels have the same kinds."""

    FLOAT32 = 0
    BFLOAT16 = 1  # for float32 rows
    INT8 = 2  # with a scale for each output
    BFLOAT16_DOTS = 3  # for bfloat16 rows, on processors with units for them
    GROUPS = 4  # with a scale for each group of inputs, for float32 rows
    GROUPS_DOTS = 5  # the same for bfloat16 rows
    FLOAT32_THIRDS = 6  # for float32 rows, multiplied as three bfloat16 each, on processors with tiles for these

    @property
    def dtype(self) -> torch.dtype:
        return (torch.float32, torch.bfloat16, torch.int8, torch.bfloat16, torch.uint8, torch.uint8, torch.float32)[
            self
        ]

    @property
    def has_bfloat16_rows(self) -> bool:
        return self in (WeightKind.BFLOAT16_DOTS, WeightKind.GROUPS_DOTS)


class Coding(IntEnum):
    """What the codes of groups stand for; see groups.h."""

    OFFSET = 0
    CENTRED = 1
    BOOK = 2
    E4M3 = 3


class Factors(IntEnum):
    """How scales and offsets of groups are kept; see groups.h."""

    FLOATS = 0
    HALVES = 1
    BYTES = 2

    @property
    def bytes(self) -> int:
        return (4, 2, 1)[self]


@dataclass(frozen=True, slots=True)
class PackedGroups:
    """How a matrix keeps its groups; see groups.h."""

    bits: int
    size: int
    coding: Coding
    factors: Factors
    book: tuple[float, ...] = ()

    @property
    def bytes(self) -> float:
        """Bytes of one weight, with its share of scale and offset."""
        each = self.factors.bytes / self.size + (2 / SUPER if self.factors == Factors.BYTES else 0)
        return self.bits / 8 + (2 if self.coding == Coding.OFFSET else 1) * each

    def struct(self) -> Groups:
        return Groups(self.bits, self.size, self.coding, self.factors, self.book)


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A product with `inputs` columns and `outputs` rows. Scales and bias are float32."""

    panels: torch.Tensor  # one-dimensional, in the order of the kernels
    scales: torch.Tensor | None
    bias: torch.Tensor | None
    inputs: int
    outputs: int
    kind: WeightKind
    groups: PackedGroups | None = None

    def keeps(self, weight: Weight) -> bool:
        """Whether the numbers of the weight that this was packed from are not rounded here."""
        if isinstance(weight, QuantizedWeight):
            return self.groups is not None
        return self.kind.dtype == torch.float32 or self.kind.dtype == weight.dtype == torch.bfloat16

    def struct(self) -> Matrix:
        """Points at the tensors of this, which must outlive it."""
        tensors = (address(tensor) for tensor in (self.panels, self.scales, self.bias))
        return Matrix(*tensors, self.inputs, self.outputs, self.kind, self.groups.struct() if self.groups else Groups())


@dataclass(frozen=True, slots=True)
class PackedTable:
    """An embedding's rows, from row `first` on: numbers [rows, hidden], or a product that has them as its outputs."""

    rows: torch.Tensor | PackedMatrix
    first: int

    def __len__(self) -> int:
        return len(self.rows) if isinstance(self.rows, torch.Tensor) else self.rows.outputs


@dataclass(frozen=True, slots=True)
class PackedNorm:
    """A norm in float32."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def struct(self) -> Norm:
        """Points at the tensors of this, which must outlive it."""
        return Norm(address(self.weight), address(self.bias))


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """A layer's experts; see ExpertsSpec."""

    router: PackedMatrix
    up: list[PackedMatrix]
    down: list[PackedMatrix]
    correction: torch.Tensor | None  # [experts], float32
    spec: ExpertsSpec

    def struct(self) -> Experts:
        """Points at the tensors of this, which must outlive it."""
        count = len(self.up)
        up, down = ((Matrix * count)(*(one.struct() for one in each)) for each in (self.up, self.down))
        spec, correction = self.spec, address(self.correction)
        sigmoid, scale = spec.sigmoid, spec.scale
        return Experts(self.router.struct(), up, down, correction, count, spec.chosen, spec.normalised, sigmoid, scale)


@dataclass(frozen=True, slots=True)
class PackedLayerInputs:
    """See LayerInputsWeights."""

    gate: PackedMatrix
    down: PackedMatrix
    norm: PackedNorm

    def struct(self) -> LayerInputs:
        """Points at the tensors of this, which must outlive it."""
        return LayerInputs(self.gate.struct(), self.down.struct(), self.norm.struct())


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """One layer; see LayerWeights."""

    attention_norm: PackedNorm | None
    qkv: PackedMatrix
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: PackedMatrix
    mlp_norm: PackedNorm | None
    up: PackedMatrix | None
    down: PackedMatrix | None
    experts: PackedExperts | None
    attention_post_norm: PackedNorm | None
    mlp_post_norm: PackedNorm | None
    rotary: Rotary | None
    sinks: torch.Tensor | None  # [heads], float32
    window: int  # 0: none
    heads: int  # which of `kinds_of_heads` of the spec
    has_keys: bool
    has_values: bool
    scale: float
    inputs: PackedLayerInputs | None

    @property
    def widest(self) -> int:
        """The most numbers of a token between two products."""
        last = [self.output, self.down, self.inputs.down if self.inputs else None]
        return max(matrix.inputs for matrix in last if matrix)

    def struct(self) -> Layer:
        """Points at the tensors of this, which must outlive it. It has no addresses of keys and values."""
        return Layer(
            attention_norm=_norm(self.attention_norm),
            qkv=self.qkv.struct(),
            query_norm=address(self.query_norm),
            key_norm=address(self.key_norm),
            output=self.output.struct(),
            mlp_norm=_norm(self.mlp_norm),
            attention_post_norm=_norm(self.attention_post_norm),
            mlp_post_norm=_norm(self.mlp_post_norm),
            up=self.up.struct() if self.up else Matrix(),
            down=self.down.struct() if self.down else Matrix(),
            experts=self.experts.struct() if self.experts else Experts(),
            cosines=address(self.rotary[0]) if self.rotary else None,
            sines=address(self.rotary[1]) if self.rotary else None,
            sinks=address(self.sinks),
            window=self.window or NO_WINDOW,
            heads=self.heads,
            has_keys=self.has_keys,
            has_values=self.has_values,
            scale=self.scale,
            inputs=self.inputs.struct() if self.inputs else LayerInputs(),
        )


@dataclass(frozen=True, slots=True)
class PackedInputsOfLayers:
    """See InputsOfLayersWeights."""

    table: PackedTable
    projection: PackedMatrix
    norm: PackedNorm

    def struct(self, spec: DecoderSpec, scale: float) -> InputsOfLayers:
        """Points at the tensors of this, which must outlive it. `scale`: of the table. The factor hidden^-0.5 of
        the product is in epsilon, since norms do not depend on the scale of x otherwise."""
        return InputsOfLayers(
            numbers=spec.layer_inputs,
            rows_factor=scale * 0.5**0.5,
            projection=self.projection.struct(),
            norm=self.norm.struct(),
            epsilon=spec.epsilon * spec.hidden,
        )


@dataclass(frozen=True, slots=True)
class PackedModel:
    """What one rank needs of a model."""

    spec: DecoderSpec  # of the whole model
    layout: Layout
    threads: int
    units: str  # of the processor that bfloat16 products are packed for; empty if there are none
    dtype: torch.dtype  # that is served
    cache_dtype: torch.dtype  # of keys and values
    layers: list[PackedLayer]
    last_norm: PackedNorm | None  # on the last stage
    vocabulary: PackedMatrix | None  # on the last stage
    embedding: PackedTable | None  # on the first stage
    positions: PackedTable | None  # on the first stage, of a model that learns them
    inputs: PackedInputsOfLayers | None
    second: torch.Tensor | None  # [hidden], what tokens of the second text of a pair get besides
    as_stored: dict[str, bool]  # by a weight's name in the checkpoint: whether it is kept as it is stored

    def served_scale(self, scale: float) -> float:
        """A factor of an embedding, as it is served."""
        exact = torch.tensor(scale)
        return float(exact.to(self.dtype) if self.spec.rounds_embedding_scale else exact)

    @property
    def kind(self) -> WeightKind:
        """How the matrices of the layers are kept."""
        return self.layers[0].output.kind


def _norm(norm: PackedNorm | None) -> Norm:
    return Norm() if norm is None else norm.struct()


def address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else int(tensor.data_ptr())
