"""NativeDecoder: a decoder of the lean path on a CPU."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import torch

from services.engine.flat_batch import FlatBatch
from services.engine.kv_cache import KVCache, LayerShape
from services.engine.lean.rotary import rotary_table
from services.engine.lean.spec import DecoderSpec
from services.engine.lean.weights import DecoderWeights, Linear
from services.engine.native.packing import Packer
from services.engine.native.structs import Batch, Heads, Layer, Model
from services.engine.pages import Reused

PHASES = ("norms", "projections of attention", "KV written", "attention", "MLP", "output")  # Phase in decoder.cpp


class NativeDecoder:
    """Activations are float32; weights are kept in `weight_dtype`, keys and values in the cache's dtype.

    A token's logits depend on its request alone, bitwise: not on the batch, the chunks or the threads.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        spec: DecoderSpec,
        config: Any,
        weights: DecoderWeights,
        weight_dtype: torch.dtype,
        cache_dtype: torch.dtype,
        threads: int,
        max_model_len: int,
    ) -> None:
        self._library, self._spec, self.cache_dtype = library, spec, cache_dtype
        self.path = "native int8" if weight_dtype == torch.int8 else "native"
        packer = Packer(library, weight_dtype, threads)
        self._layers = (Layer * spec.layers)(*(packer.layer(weights.layer(i), spec.gated) for i in range(spec.layers)))
        self._embedding = weights.embedding()
        self.weight_dtype = packer.kind(self._embedding)
        self._positions = None if spec.rotary else weights.positions()
        cosines, sines = rotary_table(config, max_model_len) if spec.rotary else (None, None)
        self._model = Model(
            hidden=spec.hidden,
            intermediate=spec.intermediate,
            layer_norm=spec.layer_norm,
            gated=spec.gated,
            threads=threads,
            epsilon=spec.epsilon,
            heads=Heads(spec.heads, spec.kv_heads, spec.head_dim, 0, spec.scaling),
            cosines=packer.numbers(cosines),
            sines=packer.numbers(sines),
            layers=self._layers,
            last_norm=packer.norm(weights.last_norm()),
            vocabulary=packer.matrix(Linear(weights.vocabulary())),
            buffers=library.orca_new_buffers(),
        )
        self._kept = packer.kept
        self._hidden, self._logits = Reused(), Reused()
        weakref.finalize(self, library.orca_delete_buffers, ctypes.c_void_p(self._model.buffers))

    @property
    def layers(self) -> list[LayerShape]:
        spec = self._spec
        return [LayerShape(spec.kv_heads, spec.head_dim, spec.head_dim)] * spec.layers

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

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """See Decoder; float32."""
        flat = Batch(
            len(batch.input_ids),
            len(batch.contexts),
            len(batch.ends),
            *(_address(part) for part in (batch.starts, batch.contexts, batch.table_starts, batch.tables, batch.ends)),
        )
        hidden = self._hidden(len(batch.input_ids), self._spec.hidden)
        hidden[:] = self._embedding[torch.from_numpy(batch.input_ids)]
        if self._positions is not None:
            hidden += self._positions[torch.from_numpy(batch.positions())]
        logits = self._logits(len(batch.ends), self._spec.vocab)
        model, told = ctypes.byref(self._model), ctypes.byref(flat)
        self._library.orca_run(model, told, 0, 2 * self._spec.layers, _pointer(hidden), None)
        self._library.orca_logits(model, told, _pointer(hidden), _pointer(logits))
        return logits


def _address(array: np.ndarray[Any, np.dtype[np.int32]]) -> int:
    assert array.dtype == np.int32, array.dtype
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    assert tensor.dtype == torch.float32, tensor.dtype
    assert tensor.is_contiguous()
    return ctypes.c_void_p(tensor.data_ptr())
