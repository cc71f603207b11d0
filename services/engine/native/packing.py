"""Weights as the kernels read them."""

from __future__ import annotations

import ctypes

import torch

from services.engine.lean.weights import LayerWeights, Linear
from services.engine.native.structs import Layer, Matrix, Norm
from services.engine.pages import zeros

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


class Packer:
    """Packs weights for `library` in `kind`, one of `KINDS`; keeps all that the structures point at."""

    def __init__(self, library: ctypes.CDLL, kind: torch.dtype, threads: int) -> None:
        self._library = library
        self._kind = kind
        self.threads = threads
        self._width = library.orca_width()
        self.kept: list[torch.Tensor] = []

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.kept)

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
        outputs, inputs = linear.weight.shape
        panels = -(-outputs // self._width) if not gated else -(-outputs // 2 // (self._width // 2))
        packed = zeros((panels * self._width * inputs,), self._kind, torch.device("cpu"))
        scales = torch.ones(panels * self._width) if self._kind == torch.int8 else None
        weight = linear.weight.to(torch.float32).contiguous()
        self._library.orca_pack(
            ctypes.c_void_p(weight.data_ptr()),
            outputs,
            inputs,
            KINDS[self._kind],
            int(gated),
            self.threads,
            ctypes.c_void_p(packed.data_ptr()),
            ctypes.c_void_p(self.numbers(scales)),
        )
        self.kept.append(packed)
        assert not (gated and linear.bias is not None), "gates have no bias"
        rows = panels * self._width if gated else outputs
        return Matrix(
            packed.data_ptr(), self.numbers(scales), self.numbers(linear.bias), inputs, rows, KINDS[self._kind]
        )

    def numbers(self, tensor: torch.Tensor | None) -> int | None:
        """The address of a copy in float32."""
        if tensor is None:
            return None
        self.kept.append(tensor.to(torch.float32).contiguous())
        return int(self.kept[-1].data_ptr())
