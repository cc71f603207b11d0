"""The states of an iteration's requests, in the blocks of the KV cache.

A block has the state of each layer after the last computed token of the block. A request that computes on in a block
begins with the state in it; one that begins a block begins with the state in the block before, which stays as it is. So
a full block always has the state after its last token: it can be shared as a prefix, and a request that continues after
a crash or a preemption begins there, exactly as with keys and values.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from services.engine.backends.stock.states import StateLayer
from services.engine.batch.flat_batch import FlatBatch
from services.engine.batch.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive tokens of a request in one block."""

    begin: int  # flat index
    count: int
    source: int  # the block with the state before them
    before: int  # the tokens of that block after which its state must be
    target: int  # the block that gets the state after them
    after: int  # the tokens of that block that are computed then


class Scratch:
    """Memory for the states of one call. New memory for each would take longer to get than to fill."""

    def __init__(self) -> None:
        self._kept: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}

    def __call__(self, pieces: int, store: torch.Tensor) -> torch.Tensor:
        """States [pieces, *shape] as those of `store` [all blocks, *shape], with undefined contents."""
        key = store.shape[1:], store.dtype
        if key not in self._kept or len(self._kept[key]) < pieces:
            self._kept[key] = store.new_empty(pieces, *key[0])
        return self._kept[key][:pieces]


@dataclass(frozen=True, slots=True)
class _Call:
    """Pieces of the same number of tokens, which one call of a module computes."""

    pieces: list[_Piece]
    tokens: torch.Tensor  # [pieces, tokens], flat indices
    sources: torch.Tensor  # [pieces]
    targets: torch.Tensor  # [pieces]

    def begin(self, store: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        """The states before these tokens [pieces, *shape], in `scratch`. That of a single piece is not copied: the
        module changes it where it is kept."""
        if len(self.pieces) > 1:
            return torch.index_select(store, 0, self.sources, out=scratch(len(self.pieces), store))
        (piece,) = self.pieces
        if piece.source != piece.target:
            store[piece.target] = store[piece.source]
        return store[piece.target : piece.target + 1]

    def end(self, store: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> None:
        """Keep the states after these tokens. `before`: what `begin` returned."""
        if len(self.pieces) > 1 or after is not before:
            store.index_copy_(0, self.targets, after.to(store.dtype))


class StateBlocks:
    """The StateBackend of one iteration. What to call is decided once for all layers."""

    def __init__(
        self,
        batch: FlatBatch,
        cache: KVCache,
        layers: Sequence[StateLayer],
        device: torch.device,
        scratch: Scratch,
    ) -> None:
        """`layers`: whose states, in this order, are the cache's. `scratch`: of earlier iterations."""
        self._cache = cache
        self._scratch = scratch
        self._first: dict[int, int] = {}  # by the id of a layer, where its states begin among the cache's
        count = 0
        for layer in layers:
            self._first[id(layer)] = count
            count += len(layer.shapes)
        self._calls: dict[bool, list[_Call]] = {}  # for layers that are `one_by_one`, and for others
        for one_by_one in {layer.one_by_one for layer in layers}:
            calls = _in_order(_cut(batch, cache.padding_block, one_by_one))
            if not self._calls:
                _note(calls, cache.state_tokens)
            self._calls[one_by_one] = [_call(pieces, device) for pieces in calls]

    def advance(self, layer: StateLayer, hidden: torch.Tensor, call: inspect.BoundArguments) -> torch.Tensor:
        first = self._first[id(layer)]
        stores = self._cache.states[first : first + len(layer.shapes)]
        outputs = torch.empty_like(hidden)
        for one in self._calls[layer.one_by_one]:
            states = [one.begin(store, self._scratch) for store in stores]
            outputs[one.tokens], after = layer.run(hidden[one.tokens], states, call)
            for kept in zip(stores, states, after, strict=True):
                one.end(*kept)
        return outputs


def _cut(batch: FlatBatch, zeros: int, one_by_one: bool) -> list[_Piece]:
    """The tokens of each request, cut where blocks end; with `one_by_one` after each token, except in a request's first
    block. `zeros` is a block with a state of zeros."""
    size, pieces = batch.block_size, []
    for i in range(batch.num_requests):
        table, begin, length = batch.table(i), int(batch.contexts[i]), batch.length(i)
        shift = int(batch.starts[i]) - begin  # from a position to a flat index
        end = begin + length
        while begin < end:
            index, offset = divmod(begin, size)
            if offset:
                source, before = table[index], offset
            else:
                source, before = (table[index - 1], size) if index else (zeros, 0)
            until = begin + 1 if one_by_one and begin else min(end, (index + 1) * size)
            pieces.append(_Piece(begin + shift, until - begin, source, before, table[index], until - index * size))
            begin = until
    return pieces


def _in_order(pieces: list[_Piece]) -> list[list[_Piece]]:
    """Calls such that a block's state is written before it is read. A request may begin with a block that another one
    fills in the same iteration."""
    last = {piece.target: number for number, piece in enumerate(pieces)}  # that writes a block
    needed: list[int | None] = []  # the piece whose state each one begins with
    latest: dict[int, int] = {}
    for number, piece in enumerate(pieces):
        writers = latest if piece.source == piece.target else last
        needed.append(writers.get(piece.source))
        latest[piece.target] = number
    calls: list[list[_Piece]] = []
    waiting = list(range(len(pieces)))
    done: set[int | None] = {None}
    while waiting:
        ready = [number for number in waiting if needed[number] in done]
        assert ready, f"the states of {len(waiting)} pieces wait for one another"
        by_count: dict[int, list[_Piece]] = {}
        for number in ready:
            by_count.setdefault(pieces[number].count, []).append(pieces[number])
        calls += by_count.values()
        done.update(ready)
        waiting = [number for number in waiting if number not in done]
    return calls


def _note(calls: list[list[_Piece]], tokens: np.ndarray[Any, np.dtype[np.int32]]) -> None:
    """Note in `tokens` [blocks] after how many tokens of its block each state will be."""
    for piece in (piece for pieces in calls for piece in pieces):
        found = tokens[piece.source]
        assert found == piece.before, f"block {piece.source} has its state after {found} tokens, not {piece.before}"
        tokens[piece.target] = piece.after


def _call(pieces: list[_Piece], device: torch.device) -> _Call:
    begins = np.array([piece.begin for piece in pieces])[:, None]
    return _Call(
        pieces,
        torch.from_numpy(begins + np.arange(pieces[0].count)).to(device),
        torch.tensor([piece.source for piece in pieces], device=device),
        torch.tensor([piece.target for piece in pieces], device=device),
    )
