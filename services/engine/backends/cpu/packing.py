"""Packs weights as the compiled kernels read them. This is the place to add a format of quantized weights.

A format is a WeightKind in packed.py and in kernels/products.h, a number type that vectors.h loads and packing.h
stores, and a case in `orca_pack` (decoder.cpp) and in `multiply` (products.h). int8 is one: see `Matrix.scales`.
EngineSettings.weights chooses it, in startup/loading.py. The trial in startup/proof compares every format with
transformers' layers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from services.engine.backends.cpu.packed import (
    Coding,
    Factors,
    PackedExperts,
    PackedGroups,
    PackedInputsOfLayers,
    PackedLayer,
    PackedLayerInputs,
    PackedMatrix,
    PackedModel,
    PackedNorm,
    PackedTable,
    Rotary,
    WeightKind,
    address,
)
from services.engine.batch.buffers import Allocate, zeros
from services.engine.families.decoder_weights import (
    DecoderWeights,
    ExpertsWeights,
    InputsOfLayersWeights,
    LayerInputsWeights,
    LayerWeights,
    Linear,
    Table,
    rotary_table,
)
from services.engine.parallel.layout import Layout
from services.engine.spec import DecoderSpec
from services.engine.weights.quantized import QuantizedWeight, Values, Weight, times

CPU = torch.device("cpu")
GROUP_STEP = 16  # groups are multiples of it: STEP in groups.h
PLANES = (5, 6)  # bits of codes that are kept in so many, beside four and eight
E4M3_FACTOR = 2.0**120  # of scales: the kernels read FP8 as so much smaller numbers
E4M3_NAN = 0x7F  # with either sign
MOST_FACTOR = 2.0**100  # of scales and offsets; the kernels' `rounded_to_bfloat16` needs weights below 2^110


@dataclass(frozen=True, slots=True)
class CpuSetup:
    """What a model is packed from. Activations are float32; weights are kept in `weight_dtype` as Packer does it, keys
    and values in `cache_dtype`."""

    library: ctypes.CDLL  # the compiled kernels
    spec: DecoderSpec  # of the whole model
    weights: DecoderWeights  # of the rank's partition
    dtype: torch.dtype  # that is served
    weight_dtype: torch.dtype
    cache_dtype: torch.dtype
    threads: int
    max_model_len: int
    allocate: Allocate = zeros  # memory for the matrices


def pack_model(setup: CpuSetup, layout: Layout) -> PackedModel:
    """Read and pack a rank's part of the model."""
    weights, part = setup.weights, layout.part_of(setup.spec)
    many_rows = setup.spec.both_ways and not weights.groups  # all matrices of a model take the same rows
    packer = Packer(setup.library, setup.weight_dtype, setup.threads, setup.allocate, many_rows)
    head = weights.vocabulary() if layout.is_last else None
    vocabulary = packer.matrix(head) if head else None
    return PackedModel(
        spec=setup.spec,
        layout=layout,
        threads=setup.threads,
        units=packer.units,
        dtype=setup.dtype,
        cache_dtype=setup.cache_dtype,
        layers=_layers(packer, setup, layout),
        last_norm=packer.norm(weights.last_norm()) if layout.is_last else None,
        vocabulary=vocabulary,
        embedding=_embedding(packer, weights, head, vocabulary) if layout.is_first else None,
        positions=packer.table(weights.positions(), weights.positions_name)
        if layout.is_first and not part.rotary
        else None,
        inputs=packer.inputs_of_layers(weights.inputs_of_layers()) if part.layer_inputs else None,
        second=weights.second_text(),
        as_stored=packer.as_stored,
    )


def _embedding(
    packer: Packer, weights: DecoderWeights, head: Linear | None, vocabulary: PackedMatrix | None
) -> PackedTable:
    """The tokens' embedding. One that is also the vocabulary is kept once, if no number is rounded there."""
    if weights.head_is_embedding and head and vocabulary and vocabulary.keeps(head.weight):
        return PackedTable(vocabulary, weights.first_token)
    return packer.table(weights.embedding(), weights.embedding_name)


def _layers(packer: Packer, setup: CpuSetup, layout: Layout) -> list[PackedLayer]:
    """A rank's layers. Those with the same rotary embeddings share a table."""
    spec, length = setup.spec, setup.max_model_len
    rotary = rotary_table(spec, length) if spec.rotary else None
    local = rotary_table(spec, length, True) if spec.local_frequencies else rotary
    layers = []
    for i in range(*layout.layers(spec.layers)):
        table = None if not spec.rotates(i) else local if spec.window(i) else rotary
        layers.append(packer.layer(setup.weights.layer(i), spec, i, table))
    return layers


class Packer:
    """Packs weights for `library`.

    Weights are packed in `dtype`, but those stored as bfloat16 stay so for float32 too: no bit is lost, and half as
    much is read. With bfloat16 they are for products of bfloat16 rows if the processor has units for these, else of
    float32 rows. If `many_rows` are usual, float32 is multiplied in thirds where there are tiles, and all weights are
    floats then: that takes less time for a prompt's rows, and more for the few rows of an iteration of outputs."""

    def __init__(
        self,
        library: ctypes.CDLL,
        dtype: torch.dtype,
        threads: int,
        allocate: Allocate = zeros,
        many_rows: bool = False,
    ) -> None:
        """`dtype`: float32, bfloat16 or int8."""
        kinds = library.orca_weight_kinds().decode().split()
        assert kinds == [kind.name for kind in WeightKind], f"the kernels have the kinds {kinds}"
        self._library = library
        self._dtype = dtype
        self._allocate = allocate
        self.threads = threads
        self._width = library.orca_width()
        self.units: str = library.orca_units().decode()
        self._thirds = many_rows and self.units == "amx"
        self.as_stored: dict[str, bool] = {}  # by name: whether a weight that was packed is kept as it is stored

    def kind(self, weight: Weight) -> WeightKind:
        """How this weight is kept."""
        if isinstance(weight, QuantizedWeight):
            return WeightKind.GROUPS_DOTS if self._dtype == torch.bfloat16 and self.units else WeightKind.GROUPS
        if self._dtype == torch.bfloat16:
            return WeightKind.BFLOAT16_DOTS if self.units else WeightKind.BFLOAT16
        if self._dtype == torch.int8:
            return WeightKind.INT8
        if self._thirds:
            return WeightKind.FLOAT32_THIRDS
        return WeightKind.BFLOAT16 if weight.dtype == torch.bfloat16 else WeightKind.FLOAT32

    def layer(self, weights: LayerWeights, spec: DecoderSpec, index: int, rotary: Rotary | None) -> PackedLayer:
        """Layer `index` of the model."""
        assert weights.scale == 1.0 or weights.mlp_post_norm, "only norms behind attention and MLP scale x"
        return PackedLayer(
            attention_norm=self.optional_norm(weights.attention_norm),
            qkv=self.matrix(weights.qkv),
            query_norm=_float32(weights.query_norm),
            key_norm=_float32(weights.key_norm),
            output=self.matrix(weights.output),
            mlp_norm=self.optional_norm(weights.mlp_norm),
            up=self.matrix(weights.up, spec.gated) if weights.up else None,
            down=self.matrix(weights.down) if weights.down else None,
            experts=self.experts(weights.experts, spec) if weights.experts else None,
            attention_post_norm=self.optional_norm(weights.attention_post_norm),
            mlp_post_norm=self.optional_norm(weights.mlp_post_norm),
            rotary=rotary,
            sinks=_float32(weights.sinks),
            window=spec.window(index),
            heads=spec.kind_of_heads(index),
            has_keys=spec.kv_layer(index) == index,
            has_values=spec.has_values(index),
            scale=weights.scale,
            inputs=self.layer_inputs(weights.inputs) if weights.inputs else None,
        )

    def layer_inputs(self, weights: LayerInputsWeights) -> PackedLayerInputs:
        return PackedLayerInputs(self.matrix(weights.gate), self.matrix(weights.down), self.norm(weights.norm))

    def inputs_of_layers(self, weights: InputsOfLayersWeights) -> PackedInputsOfLayers:
        """The norm's weight has the factor of the sum."""
        norm = Linear(weights.norm.numbers.to(torch.float32) * 0.5**0.5)
        table = self.table(weights.table, weights.table_name)
        return PackedInputsOfLayers(table, self.matrix(weights.projection), self.norm(norm))

    def experts(self, weights: ExpertsWeights, spec: DecoderSpec) -> PackedExperts:
        """The router is not kept in eight bits: an error there would choose other experts."""
        assert spec.experts is not None
        exact = torch.float32 if self._dtype == torch.int8 else self._dtype
        router = Packer(self._library, exact, self.threads, self._allocate, self._thirds).matrix(weights.router)
        packed = [(self.matrix(up, spec.gated), self.matrix(down)) for up, down in weights.each]
        up, down = ([pair[i] for pair in packed] for i in range(2))
        return PackedExperts(router, up, down, _float32(weights.correction), spec.experts)

    def table(self, table: Table, name: str) -> PackedTable:
        """`name`: of its weight, whose rows are kept as they are stored if they can be."""
        rows = table.rows
        if isinstance(rows, QuantizedWeight) and rows.group % GROUP_STEP == 0:
            return PackedTable(self.matrix(Linear(rows, names=(name,))), table.first)
        self.as_stored.setdefault(name, False)
        return PackedTable(rows.dequantize() if isinstance(rows, QuantizedWeight) else rows, table.first)

    def optional_norm(self, norm: Linear | None) -> PackedNorm | None:
        return None if norm is None else self.norm(norm)

    def norm(self, norm: Linear) -> PackedNorm:
        return PackedNorm(norm.numbers.to(torch.float32).contiguous(), _float32(norm.bias))

    def matrix(self, linear: Linear, gated: bool = False) -> PackedMatrix:
        """`gated`: half of the outputs are gates; each is packed in the same panel as the output that it multiplies."""
        if isinstance(linear.weight, QuantizedWeight) and not _is_executed(linear.weight):
            linear = replace(linear, weight=linear.numbers)
        self.as_stored |= dict.fromkeys(linear.names, isinstance(linear.weight, QuantizedWeight))
        outputs, inputs = linear.weight.shape
        panels = -(-outputs // 2 // (self._width // 2)) if gated else -(-outputs // self._width)
        kind = self.kind(linear.weight)
        columns = panels * self._width if gated else outputs
        bias = _float32(linear.bias)
        if bias is not None and gated:
            bias = self._beside_gates(bias, panels)
        if isinstance(linear.weight, QuantizedWeight):
            packed, groups = self._groups(linear.weight, kind, panels, gated)
            return PackedMatrix(packed, None, bias, inputs, columns, kind, groups)
        size = panels * self._library.orca_panel_size(kind, inputs)
        packed = self._allocate((size,), kind.dtype, CPU)
        scales = torch.empty(panels * self._width) if kind == WeightKind.INT8 else None
        is_bfloat16 = linear.numbers.dtype == torch.bfloat16
        weight = linear.numbers.to(torch.bfloat16 if is_bfloat16 else torch.float32).contiguous()
        self._library.orca_pack(
            ctypes.c_void_p(weight.data_ptr()),
            int(is_bfloat16),
            outputs,
            inputs,
            kind,
            int(gated),
            self.threads,
            ctypes.c_void_p(packed.data_ptr()),
            ctypes.c_void_p(address(scales)),
        )
        return PackedMatrix(packed, scales, bias, inputs, columns, kind)

    def _beside_gates(self, bias: torch.Tensor, panels: int) -> torch.Tensor:
        """The bias of a gated matrix, in the order of the columns of its panels."""
        lanes = self._width // 2
        halves = bias.new_zeros(2, panels * lanes)
        halves[:, : len(bias) // 2] = bias.view(2, -1)
        return halves.view(2, panels, lanes).transpose(0, 1).reshape(-1).contiguous()

    def _groups(
        self, weight: QuantizedWeight, kind: WeightKind, panels: int, gated: bool
    ) -> tuple[torch.Tensor, PackedGroups]:
        """The panels of a weight in groups, with its own codes, scales and offsets."""
        weight = weight if weight.bits in PLANES else weight.centred()
        outputs, inputs = weight.shape
        bits = weight.bits if weight.bits in PLANES else 4 if weight.bits <= 4 else 8
        coding = _coding(weight, bits)
        scales = weight.scales * E4M3_FACTOR if coding == Coding.E4M3 else weight.scales
        count = 2 if coding == Coding.OFFSET else 1
        supers = weight.supers[:count]
        kept, factors = _factors([scales, weight.offsets][:count], supers)
        groups = PackedGroups(bits, weight.group, coding, kept, weight.values.book)
        struct = groups.struct()
        size = self._library.orca_group_panel_size(ctypes.byref(struct), inputs)
        packed = self._allocate((panels * size,), kind.dtype, CPU)
        tensors = [weight.codes.contiguous(), *_two(factors), *_two(supers)]
        self._library.orca_pack_groups(
            *(ctypes.c_void_p(address(each)) for each in tensors),
            ctypes.byref(struct),
            outputs,
            inputs,
            kind,
            int(gated),
            self.threads,
            ctypes.c_void_p(packed.data_ptr()),
        )
        return packed, groups


def _factors(factors: list[torch.Tensor], supers: tuple[torch.Tensor, ...]) -> tuple[Factors, list[torch.Tensor]]:
    """How scales and offsets are kept, and what of them: if these are multiples of `supers`, how many times."""
    if all(torch.equal(each.to(torch.float16).to(torch.float32), each) for each in factors):
        return Factors.HALVES, factors
    if counts := times(factors, supers):
        return Factors.BYTES, counts
    return Factors.FLOATS, factors


def _two(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Contiguous, filled up with None."""
    return [*(each.contiguous() for each in tensors), None, None][:2]


def _coding(weight: QuantizedWeight, bits: int) -> Coding:
    if weight.values == Values.INTEGERS:
        is_centred = torch.equal(weight.offsets, weight.scales * -(1 << bits - 1))
        return Coding.CENTRED if is_centred else Coding.OFFSET
    return Coding.BOOK if weight.values.book else Coding.E4M3


def _is_executed(weight: QuantizedWeight) -> bool:
    """Whether the kernels give the numbers of these codes. They round with numbers that are larger than the weights. Of
    FP8, they do not know NaN, and scales must have room for their factor."""
    if weight.group % GROUP_STEP or not all(
        bool(each.abs().amax() <= MOST_FACTOR) for each in (weight.scales, weight.offsets)
    ):
        return False
    if weight.values != Values.E4M3:
        return True
    return not (weight.codes & E4M3_NAN == E4M3_NAN).any() and bool((weight.scales * E4M3_FACTOR).isfinite().all())


def _float32(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(torch.float32).contiguous()
