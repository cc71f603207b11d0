"""The bits of attention on a device: whether all ways of planning it have the same, and a hash of them."""

from __future__ import annotations

import hashlib
import logging
from array import array
from dataclasses import dataclass

import numpy as np
import torch

from services.engine.backends.cuda.inputs import send
from services.engine.backends.cuda.kernels.attention import Partials, attend
from services.engine.backends.cuda.kernels.heads import Heads, place
from services.engine.backends.cuda.plan import Planner, Tiles, plan
from services.engine.batch.flat_batch import FlatBatch, pack_batch
from services.engine.batch.kv_cache import KVCache, LayerShape
from services.engine.batch.request_state import RequestState
from services.engine.spec import AttentionSpec
from services.requests import SamplingParams

BLOCK_SIZE = 16
SPLITS = 4  # of the longest request, less some positions: its merge has more than two parts

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AttentionBits:
    """Attention of requests with random keys and values, which have one token each."""

    part: AttentionSpec
    tiles: Tiles
    dtype: torch.dtype
    multiprocessors: int
    device: torch.device
    cache_dtype: torch.dtype | None = None  # of keys and values, if it is another

    def lengths(self) -> list[int]:
        """Positions of each request: of one tile and several, of one split and several."""
        split = self.tiles.split
        return [1, self.tiles.keys + 1, split, split + 1, SPLITS * split - 24]

    def drawn(self) -> tuple[FlatBatch, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The requests, and random qkv [requests, ...], keys and values; a request's blocks follow one another."""
        part, drawn, states, first = self.part, torch.Generator().manual_seed(1), [], 0
        for length in self.lengths():
            blocks = -(-length // BLOCK_SIZE)
            state = RequestState("bits", [0] * length, length, SamplingParams(1), length - 1)
            state.blocks = array("i", range(first, first := first + blocks))
            states.append((state, 1))

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=drawn).to(self.device, self.dtype)

        qkv = random(len(states), (part.heads + 2 * part.kv_heads) * part.head_dim)
        cache = KVCache(
            [LayerShape(part.kv_heads, *[part.head_dim] * 2)],
            first,
            BLOCK_SIZE,
            self.cache_dtype or self.dtype,
            self.device,
        )
        slots = torch.arange(first * BLOCK_SIZE, dtype=torch.int32, device=self.device)
        written = random(len(slots), (part.heads + 2 * part.kv_heads) * part.head_dim)
        place(written, slots, slots, cache.keys[0], cache.values[0], Heads(part.heads, 0.0))
        return pack_batch(states, BLOCK_SIZE), qkv, cache.keys[0], cache.values[0]

    def run(self, tiles: Tiles, partial_rows: int) -> torch.Tensor:
        """[requests, heads * dim]. With no rows of partial sums, one program has all splits of a tile; else the last of
        several merges them."""
        part, (batch, qkv, keys, values) = self.part, self.drawn()
        programs = tiles.resident * self.multiprocessors
        items = plan(batch, part, tiles, programs, partial_rows)
        partials = Partials.make(max(1, partial_rows), part.kv_heads, part.head_dim, self.device)
        (work,) = send(batch, [items], self.device).work
        sinks = torch.ones(part.heads, device=self.device) if part.sinks else None
        return attend(qkv, keys, values, work, partials, part, tiles, self.multiprocessors, sinks)


def settle_attention(bits: AttentionBits, planner: Planner) -> bytes:
    """Compare narrow and wide tiles, merged by one program and by the last of several, and let `planner` have one tile
    for all if any differ. Returns a hash of the bits. The host waits. Raises
    RuntimeError if bits depend on who merges splits."""
    rows = sum(-(-length // bits.tiles.split) for length in bits.lengths()) * bits.part.queries_per_kv
    expected = bits.run(bits.tiles, 0)
    for tiles in {bits.tiles, planner.increments}:
        for partial_rows in (0, rows):
            if torch.equal(bits.run(tiles, partial_rows), expected):
                continue
            if tiles == bits.tiles:
                raise RuntimeError(f"attention: the bits of {tiles} depend on how splits are merged")
            log.warning("attention: %s has other bits than %s, not used", tiles, bits.tiles)
            planner.widen()
    return hashlib.sha256(np.ascontiguousarray(expected.view(torch.uint8).cpu().numpy()).tobytes()).digest()


def fingerprint(*hashes: bytes) -> str:
    """One short name for these."""
    return hashlib.sha256(b"".join(hashes)).hexdigest()[:8]
