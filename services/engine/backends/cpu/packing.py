"""Weights as the compiled kernels read them. This is the place to add a format of quantized weights.

A format is a WeightKind here and in kernels/products.h, a number type that vectors.h loads and packing.h stores, and a
case in `orca_pack` (decoder.cpp) and in `multiply` (products.h). int8 is one: see `Matrix.scales`.
EngineSettings.weights chooses it, in startup/loading.py. The trial in startup/proof compares every format with
transformers' layers."""

from __future__ import annotations

import ctypes
from enum import IntEnum

import torch

from services.engine.backends.cpu.structs import Layer, Matrix, Norm
from services.engine.batch.buffers import zeros
from services.engine.families.weights import LayerWeights, Linear


class WeightKind(IntEnum):
    """How a matrix is kept; Packer checks that the kernels have the same kinds."""

    FLOAT32 = 0
    BFLOAT16 = 1  # for float32 rows
    INT8 = 2  # with a scale for each output
    BFLOAT16_DOTS = 3  # for bfloat16 rows, on processors with units for them

    @property
    def dtype(self) -> torch.dtype:
        return (torch.float32, torch.bfloat16, torch.int8, torch.bfloat16)[self]


class Packer:
    """Packs weights for `library`, and keeps everything that the structures point at.

    Weights are packed in `dtype`, but those stored as bfloat16 stay so for float32 too: no bit is lost, and half as
    much is read. With bfloat16 they are for products of bfloat16 rows if the processor has units for these, else of
    float32 rows."""

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype, threads: int) -> None:
        """`dtype`: float32, bfloat16 or int8."""
        kinds = library.orca_weight_kinds().decode().split()
        assert kinds == [kind.name for kind in WeightKind], f"the kernels have the kinds {kinds}"
        self._library = library
        self._dtype = dtype
        self.threads = threads
        self._width = library.orca_width()
        self.units: str = library.orca_units().decode()
        self.kept: list[torch.Tensor] = []

    def kind(self, weight: torch.Tensor) -> WeightKind:
        """How this weight is kept."""
        if self._dtype == torch.bfloat16:
            return WeightKind.BFLOAT16_DOTS if self.units else WeightKind.BFLOAT16
        if self._dtype == torch.int8:
            return WeightKind.INT8
        return WeightKind.BFLOAT16 if weight.dtype == torch.bfloat16 else WeightKind.FLOAT32

    def layer(self, weights: LayerWeights, gated: bool) -> Layer:
        """A layer without the cache's tensors."""
        return Layer(
            attention_norm=self.norm(weights.attention_norm),
            qkv=self.matrix(weights.qkv),
            query_norm=self.numbers(weights.query_norm),
            key_norm=self.numbers(weights.key_norm),
            output=self.matrix(weights.output),
            mlp_norm=self.norm(weights.mlp_norm),
            up=self.matrix(weights.up, gated),
            down=self.matrix(weights.down),
        )

    def norm(self, norm: Linear) -> Norm:
        return Norm(self.numbers(norm.weight), self.numbers(norm.bias))

    def matrix(self, linear: Linear, gated: bool = False) -> Matrix:
        """`gated`: half of the outputs are gates; each is packed in the same panel as the output that it multiplies."""
        assert not (gated and linear.bias is not None), "gates have no bias"
        outputs, inputs = linear.weight.shape
        panels = -(-outputs // 2 // (self._width // 2)) if gated else -(-outputs // self._width)
        kind = self.kind(linear.weight)
        size = panels * self._library.orca_panel_size(kind, inputs)
        packed = zeros((size,), kind.dtype, torch.device("cpu"))
        scales = torch.empty(panels * self._width) if kind == WeightKind.INT8 else None
        is_bfloat16 = linear.weight.dtype == torch.bfloat16
        weight = linear.weight.to(torch.bfloat16 if is_bfloat16 else torch.float32).contiguous()
        to = self.numbers(scales)
        self._library.orca_pack(
            ctypes.c_void_p(weight.data_ptr()),
            int(is_bfloat16),
            outputs,
            inputs,
            kind,
            int(gated),
            self.threads,
            ctypes.c_void_p(packed.data_ptr()),
            ctypes.c_void_p(to),
        )
        self.kept.append(packed)
        columns = panels * self._width if gated else outputs
        return Matrix(packed.data_ptr(), to, self.numbers(linear.bias), inputs, columns, kind)

    def numbers(self, tensor: torch.Tensor | None) -> int | None:
        """The address of a copy in float32."""
        if tensor is None:
            return None
        self.kept.append(tensor.to(torch.float32).contiguous())
        return int(self.kept[-1].data_ptr())
