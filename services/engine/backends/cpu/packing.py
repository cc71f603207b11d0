"""Weights as the kernels read them."""

from __future__ import annotations

import ctypes

import torch

from services.engine.backends.cpu.structs import Layer, Matrix, Norm
from services.engine.batch.buffers import zeros
from services.engine.families.weights import LayerWeights, Linear

# of Matrix in kernels/products.h
STORED = (torch.float32, torch.bfloat16, torch.int8, torch.bfloat16)
FLOAT32, BFLOAT16, INT8, SHORT = range(4)


class Packer:
    """Packs weights for `library`; keeps all that the structures point at.

    In `dtype`, but weights stored as bfloat16 stay so for float32 too: no bit is lost, and half as much is read. With
    bfloat16 they are for products of bfloat16 rows where the processor has units for these, else of float32 rows.
    """

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype, threads: int) -> None:
        """`dtype`: float32, bfloat16 or int8."""
        self._library = library
        self._dtype = dtype
        self.threads = threads
        self._width = library.orca_width()
        self.units: str = library.orca_units().decode()
        self.kept: list[torch.Tensor] = []

    def kind(self, weight: torch.Tensor) -> int:
        """How this weight is kept."""
        if self._dtype == torch.bfloat16:
            return SHORT if self.units else BFLOAT16
        if self._dtype == torch.int8:
            return INT8
        return BFLOAT16 if weight.dtype == torch.bfloat16 else FLOAT32

    def layer(self, weights: LayerWeights, gated: bool) -> Layer:
        """Without the cache's tensors."""
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
        """`gated`: half the outputs are gates, each in the same panel as what it lets through."""
        assert not (gated and linear.bias is not None), "gates have no bias"
        outputs, inputs = linear.weight.shape
        panels = -(-outputs // 2 // (self._width // 2)) if gated else -(-outputs // self._width)
        kind = self.kind(linear.weight)
        size = panels * self._library.orca_panel_size(kind, inputs)
        packed = zeros((size,), STORED[kind], torch.device("cpu"))
        scales = torch.empty(panels * self._width) if kind == INT8 else None
        short = linear.weight.dtype == torch.bfloat16
        weight = linear.weight.to(torch.bfloat16 if short else torch.float32).contiguous()
        to = self.numbers(scales)
        self._library.orca_pack(
            ctypes.c_void_p(weight.data_ptr()),
            int(short),
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
