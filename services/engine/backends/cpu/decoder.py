"""CpuDecoder: the fast path on a CPU. Python sees no layer: a compiled function runs all of them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from services.engine.backends.cpu.adapters import CpuAdapters
from services.engine.backends.cpu.packed import PackedMatrix, PackedModel, PackedTable, WeightKind
from services.engine.backends.cpu.structs import Batch, Heads, InputsOfLayers, Layer, Matrix, Model, Norm
from services.engine.batch.buffers import ReusedBuffer
from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.batch.kv_cache import KVCache
from services.engine.parallel.decoder import AllReduce, RankDecoder
from services.engine.weights.description import tensor_bytes

CPU = torch.device("cpu")
PHASES = ("norms", "projections of attention", "KV written", "attention", "MLP", "output")  # Phase in model.h

CACHE_KINDS = (torch.float32, torch.bfloat16, torch.int8)  # CacheKind in batch.h


class CpuDecoder(RankDecoder):
    """See RankDecoder. Bits do not depend on the batch, the chunks or the threads."""

    def __init__(self, library: ctypes.CDLL, packed: PackedModel) -> None:
        layout = packed.layout
        super().__init__(packed.spec, layout, CPU)
        part = self._part
        self._library, self._packed = library, packed
        self._layers = (Layer * part.layers)(*(layer.struct() for layer in packed.layers))
        kinds, inputs_scale = part.kinds_of_heads, packed.served_scale(part.layer_inputs_scale)
        self._heads = (Heads * len(kinds))(
            *(
                Heads(k.heads, k.kv_heads, k.head_dim, 0, part.scaling_of(k.head_dim), part.soft_cap, part.both_ways)
                for k in kinds
            )
        )
        groups = packed.layers[0].output.groups
        self.weight_dtype, self.cache_dtype = torch.bfloat16 if groups else packed.kind.dtype, packed.cache_dtype
        self.weight_bytes = groups.bytes if groups else self.weight_dtype.itemsize
        self.backend = "native"
        if packed.kind.has_bfloat16_rows:
            self.backend += f" {packed.units}"
        if packed.kind == WeightKind.FLOAT32_THIRDS:
            self.backend += f" {packed.units}-thirds"
        if packed.kind == WeightKind.INT8:
            self.backend += " int8"
        self._model = Model(
            layer_count=part.layers,
            hidden=part.hidden,
            layer_norm=part.layer_norm,
            norms_all_heads=part.norms_all_heads,
            norms_after_rotary=part.norms_after_rotary,
            value_norms=part.value_norms,
            parallel=part.parallel,
            gated=part.gated,
            norms_sums=part.norms_sums,
            widest=max(layer.widest for layer in packed.layers),
            qkv_width=max(layer.qkv.outputs for layer in packed.layers),
            writing_layers=1 + max(i for i, layer in enumerate(packed.layers) if layer.has_keys),
            heads_count=len(self._heads),
            threads=packed.threads,
            activation=part.activation,
            epsilon=part.epsilon,
            logits_soft_cap=part.logits_soft_cap,
            swiglu_alpha=part.swiglu_alpha,
            swiglu_limit=part.swiglu_limit,
            heads=self._heads,
            layers=self._layers,
            last_norm=packed.last_norm.struct() if packed.last_norm else Norm(),
            vocabulary=packed.vocabulary.struct() if packed.vocabulary else Matrix(),
            inputs=packed.inputs.struct(part, inputs_scale) if packed.inputs else InputsOfLayers(),
            buffers=library.orca_new_buffers(),
        )
        weakref.finalize(self, library.orca_delete_buffers, ctypes.c_void_p(self._model.buffers))
        self.adapters: CpuAdapters = CpuAdapters(library.orca_width() // 2, part.gated)
        self.halves = 2 * part.layers  # of layers, see `run_halves`
        self.parallel = part.parallel
        self._embedding, self._positions = packed.embedding, packed.positions
        self._second = packed.second
        self._embedding_scale = packed.served_scale(part.embedding_scale)
        self._x, self._logits, self._layer_inputs = ReusedBuffer(), ReusedBuffer(), ReusedBuffer()
        self.as_stored: Mapping[str, bool] = packed.as_stored
        self.memory = tensor_bytes(packed)

    def __reduce__(self) -> tuple[type[CpuDecoder], tuple[ctypes.CDLL, PackedModel]]:
        """Pickles the weights; structures and buffers are made anew."""
        return CpuDecoder, (self._library, self._packed)

    def bind(self, cache: KVCache) -> None:
        self._cache = cache
        for heads in self._heads:
            heads.block_size = cache.block_size
        self._model.cache_kind = CACHE_KINDS.index(cache.dtype)
        first, end = self._layout.layers(self._spec.layers)
        owners = [layer for layer in range(first, end) if self._spec.kv_layer(layer) == layer]
        places = {layer: 0 if self._spec.both_ways else i for i, layer in enumerate(owners)}
        for i, layer in enumerate(self._layers, first):
            place = places[self._spec.kv_layer(i)]
            layer.keys, layer.values = cache.keys[place].data_ptr(), cache.values[place].data_ptr()

    def begin(self, batch: FlatBatch) -> CpuForwardPass:
        if batch.drawn:
            batch.drawn.put(torch.from_numpy(batch.input_ids))
        return CpuForwardPass(self, batch)

    def seconds(self) -> dict[str, float]:
        """How long the layers took so far, by phase."""
        times = (ctypes.c_double * len(PHASES))()
        self._library.orca_seconds(ctypes.c_void_p(self._model.buffers), times)
        return dict(zip(PHASES, times, strict=True))

    def embed(self, batch: FlatBatch) -> torch.Tensor:
        assert self._embedding is not None, "the first stage embeds"
        size = len(batch.input_ids), self._part.hidden
        x = self._x(*size) if self._layout.is_last else torch.empty(size)  # what is sent on must not be overwritten
        whole = self._layout.tp == 1
        x[:] = self._look_up(self._embedding, batch.input_ids, whole)
        if self._embedding_scale != 1.0:
            x *= self._embedding_scale
        if self._positions is not None:
            x += self._look_up(self._positions, batch.positions(), whole)
        if self._second is not None:
            for i, state in enumerate(batch.sampled):
                if second := state.sampling.second_text:
                    x[batch.starts[i] + second : batch.starts[i + 1]] += self._second
        return x

    def _look_up(self, table: PackedTable, ids: Numbers, whole: bool) -> torch.Tensor:
        """The rows [ids, hidden]; zeros where another partition has the row, if it is not the `whole` table."""
        if whole:
            return self._read(table.rows, ids)
        rows = ids - table.first
        there = (rows >= 0) & (rows < len(table))
        found = self._read(table.rows, np.where(there, rows, 0).astype(np.int32))
        return found.masked_fill_(torch.from_numpy(~there)[:, None], 0.0)

    def _read(self, rows: torch.Tensor | PackedMatrix, ids: Numbers) -> torch.Tensor:
        if isinstance(rows, torch.Tensor):
            return rows.index_select(0, torch.from_numpy(ids))
        found = torch.empty(len(ids), rows.inputs)
        matrix, at = ctypes.byref(rows.struct()), ctypes.c_void_p(_address(ids))
        self._library.orca_read_outputs(matrix, at, len(ids), self._packed.threads, _pointer(found))
        return found

    def run_halves(
        self, batch: Batch, first: int, end: int, x: torch.Tensor, partial: torch.Tensor | None = None
    ) -> None:
        """Run the halves of layers from `first` to `end` over x [tokens, hidden]: 2 * layer is attention, 2 * layer + 1
        the MLP; of `parallel` layers, the first half is both, and the second is empty. They add to x; the last layer
        before the vocabulary at least to the rows whose logits are wanted. With `partial` [tokens, hidden], one half
        writes there what is to be added."""
        to = None if partial is None else _pointer(partial)
        self._library.orca_run(ctypes.byref(self._model), ctypes.byref(batch), first, end, _pointer(x), to)

    def add(self, batch: Batch, half: int, change: torch.Tensor, x: torch.Tensor) -> None:
        """Add to x [tokens, hidden] what a half of a layer computed, if it is the sum of several ranks' `partial`; and
        what the layer adds behind its MLP."""
        model, of_batch = ctypes.byref(self._model), ctypes.byref(batch)
        self._library.orca_add(model, of_batch, half, _pointer(change), _pointer(x))

    def layer_inputs(self, batch: FlatBatch, x: torch.Tensor, all_reduce: AllReduce | None) -> torch.Tensor | None:
        """The numbers of each token that layers get [tokens, layers * numbers]; x is that before the first layer. None
        if they get none."""
        inputs = self._packed.inputs
        if inputs is None:
            return None
        found = self._layer_inputs(len(batch.input_ids), inputs.projection.outputs)
        found[:] = self._look_up(inputs.table, batch.input_ids, self._layout.tp == 1)
        if all_reduce:
            found = all_reduce(found)
        self._library.orca_layer_inputs(ctypes.byref(self._model), _pointer(x), len(x), _pointer(found))
        return found

    def logits(self, batch: Batch, x: torch.Tensor, tokens: Numbers) -> torch.Tensor:
        logits = self._logits(len(tokens), self._model.vocabulary.outputs)
        model, at = ctypes.byref(self._model), ctypes.c_void_p(_address(tokens))
        self._library.orca_logits(model, ctypes.byref(batch), at, len(tokens), _pointer(x), _pointer(logits))
        return logits


class CpuForwardPass:
    """See ForwardPass."""

    def __init__(self, decoder: CpuDecoder, batch: FlatBatch) -> None:
        self._decoder, self._batch, self._struct = decoder, batch, as_struct(batch, decoder.adapters)

    def embed(self) -> torch.Tensor:
        return self._decoder.embed(self._batch)

    def run(self, x: torch.Tensor, all_reduce: AllReduce | None) -> None:
        decoder, halves = self._decoder, self._decoder.halves
        inputs = decoder.layer_inputs(self._batch, x, all_reduce)
        if inputs is not None:
            self._struct.layer_inputs = inputs.data_ptr()
        if all_reduce is None:
            return decoder.run_halves(self._struct, 0, halves, x)
        partial = torch.empty_like(x)
        for half in range(0, halves, 2 if decoder.parallel else 1):
            decoder.run_halves(self._struct, half, half + 1, x, partial)
            decoder.add(self._struct, half, all_reduce(partial), x)
        return None

    def logits(self, x: torch.Tensor, change: torch.Tensor | None, tokens: Numbers | None) -> torch.Tensor:
        return self._decoder.logits(self._struct, x, self._batch.ends if tokens is None else tokens)


def as_struct(batch: FlatBatch, adapters: CpuAdapters) -> Batch:
    """The batch for C++, valid as long as `batch` lives and has its adapters."""
    rows, strips = adapters.rows(batch.adapted)
    return Batch(
        len(batch.input_ids),
        len(batch.contexts),
        len(batch.wanted),
        *(_address(part) for part in (batch.starts, batch.contexts, batch.table_starts, batch.tables, batch.wanted)),
        None,
        rows,
        len(rows),
        strips,
    )


def _address(array: np.ndarray[Any, np.dtype[np.int32]]) -> int:
    assert array.dtype == np.int32, array.dtype
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    assert tensor.dtype == torch.float32, tensor.dtype
    assert tensor.is_contiguous()
    return ctypes.c_void_p(tensor.data_ptr())
