"""NativeLayers: layers of a decoder, whole or one shard of each, as compiled functions."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import torch

from services.engine.backends.cpu.packing import SHORT, STORED, Packer
from services.engine.backends.cpu.setup import NativeSetup
from services.engine.backends.cpu.structs import Batch, Heads, Layer, Matrix, Model, Norm
from services.engine.batch.buffers import Reused
from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.batch.kv_cache import KVCache, LayerShape
from services.engine.families.rotary import rotary_table
from services.engine.families.spec import DecoderSpec
from services.engine.families.weights import Linear
from services.engine.parallel.shard import Rows

PHASES = ("norms", "projections of attention", "KV written", "attention", "MLP", "output")  # Phase in model.h


class NativeLayers:
    """`part`: what the weights have of each of `layers`; `is_last`: last norm and vocabulary come after them."""

    path = "native"

    def __init__(self, setup: NativeSetup, part: DecoderSpec, layers: Rows, is_last: bool = True) -> None:
        library, weights = setup.library, setup.weights
        self._library, self._part = library, part
        self.cache_dtype = setup.cache_dtype
        packer = Packer(library, setup.weight_dtype, setup.threads)
        self._layers = (Layer * part.layers)(*(packer.layer(weights.layer(i), part.gated) for i in range(*layers)))
        kind = self._layers[0].down.kind
        self.weight_dtype = STORED[kind]
        if kind == SHORT:
            self.path += f" {packer.units}"
        if self.weight_dtype == torch.int8:
            self.path += " int8"
        cosines, sines = rotary_table(part, setup.max_model_len) if part.rotary else (None, None)
        self._model = Model(
            layer_count=part.layers,
            hidden=part.hidden,
            intermediate=part.intermediate,
            layer_norm=part.layer_norm,
            gated=part.gated,
            threads=setup.threads,
            epsilon=part.epsilon,
            heads=Heads(part.heads, part.kv_heads, part.head_dim, 0, part.scaling),
            cosines=packer.numbers(cosines),
            sines=packer.numbers(sines),
            layers=self._layers,
            last_norm=packer.norm(weights.last_norm()) if is_last else Norm(),
            vocabulary=packer.matrix(Linear(weights.vocabulary())) if is_last else Matrix(),
            buffers=library.orca_new_buffers(),
        )
        self._kept = packer.kept
        self._logits = Reused()
        weakref.finalize(self, library.orca_delete_buffers, ctypes.c_void_p(self._model.buffers))

    @property
    def layers(self) -> list[LayerShape]:
        part = self._part
        return [LayerShape(part.kv_heads, part.head_dim, part.head_dim)] * part.layers

    def bind(self, cache: KVCache) -> None:
        """Keep keys and values in `cache` from now on."""
        self._cache = cache
        self._model.heads.block_size = cache.block_size
        self._model.bfloat16_cache = cache.dtype == torch.bfloat16
        for layer, keys, values in zip(self._layers, cache.keys, cache.values, strict=True):
            layer.keys, layer.values = keys.data_ptr(), values.data_ptr()

    def seconds(self) -> dict[str, float]:
        """What the layers took so far, by phase."""
        told = (ctypes.c_double * len(PHASES))()
        self._library.orca_seconds(ctypes.c_void_p(self._model.buffers), told)
        return dict(zip(PHASES, told, strict=True))

    def run(self, batch: Batch, first: int, end: int, x: torch.Tensor, partial: torch.Tensor | None = None) -> None:
        """The halves `first` to `end` over x [tokens, hidden]: 2 * layer is attention, 2 * layer + 1 the MLP. They add
        to x, after the last layer before the vocabulary at least to the rows whose logits are wanted; or one half
        writes to `partial` [tokens, hidden] what is to be added."""
        to = None if partial is None else _pointer(partial)
        self._library.orca_run(ctypes.byref(self._model), ctypes.byref(batch), first, end, _pointer(x), to)

    def logits(self, batch: Batch, x: torch.Tensor, tokens: Numbers) -> torch.Tensor:
        """[tokens, vocabulary] after these tokens, which are among the batch's wanted ones: float32, as much of the
        vocabulary as there is here; there until the next call."""
        logits = self._logits(len(tokens), self._model.vocabulary.outputs)
        model, at = ctypes.byref(self._model), ctypes.c_void_p(_address(tokens))
        self._library.orca_logits(model, ctypes.byref(batch), at, len(tokens), _pointer(x), _pointer(logits))
        return logits


def as_struct(batch: FlatBatch) -> Batch:
    """Valid as long as `batch` is."""
    return Batch(
        len(batch.input_ids),
        len(batch.contexts),
        len(batch.wanted),
        *(_address(part) for part in (batch.starts, batch.contexts, batch.table_starts, batch.tables, batch.wanted)),
    )


def _address(array: np.ndarray[Any, np.dtype[np.int32]]) -> int:
    assert array.dtype == np.int32, array.dtype
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    assert tensor.dtype == torch.float32, tensor.dtype
    assert tensor.is_contiguous()
    return ctypes.c_void_p(tensor.data_ptr())
