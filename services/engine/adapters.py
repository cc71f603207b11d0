"""LoRA adapters in an engine's memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch

from services.adapters.peft import LowRank


@dataclass(frozen=True, slots=True)
class LowRankProduct:
    """What is added to a product of x [inputs]: b (scales * (a x)). Those of joined products are beside each other, so
    `b` has zeros where a row is of another one."""

    a: torch.Tensor  # [rank, inputs]
    b: torch.Tensor  # [outputs, rank]
    scales: torch.Tensor  # [rank]


@dataclass(frozen=True, slots=True)
class LowRankLayer:
    """An adapter's part of a layer's products; None where it changes nothing. See LayerWeights."""

    qkv: LowRankProduct | None
    output: LowRankProduct | None
    up: LowRankProduct | None
    down: LowRankProduct | None
    changed: frozenset[str]  # the linear layers that these products consist of


NO_CHANGE = LowRankLayer(None, None, None, None, frozenset())


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter's parts by the names of the model's linear layers, which transformers' own layers need; or what it
    adds to the layers of a rank of the fast path."""

    parts: Mapping[str, LowRank]
    layers: Sequence[LowRankLayer] = ()


class AdapterSlots(Protocol):
    """The adapters of a decoder, which batches name by their digests."""

    def put(self, digest: str, adapter: Adapter) -> None:
        """Called in a thread of its own, beside the calls of the other methods."""
        ...

    def drop(self, digest: str) -> None: ...


class Adapters:
    """Reads adapters, in a thread, before requests need them, or when they do. Of those that no request has, the ones
    that were needed last stay."""

    def __init__(self, slots: AdapterSlots, read: Callable[[str], Adapter], most: int) -> None:
        """`read` raises ValueError. `most`: bytes of those in memory; there are more only while requests have them."""
        self._slots, self._read, self._most = slots, read, most
        self._loaded: dict[str, int] = {}  # bytes by digest, the one that was needed longest ago first
        self._reading: dict[str, Future[int]] = {}  # those that no request has needed yet
        self._reader = ThreadPoolExecutor(1, "adapters")

    def __contains__(self, digest: str) -> bool:
        return digest in self._loaded

    def need(self, digest: str) -> str:
        """Have this adapter in memory. Returns why that cannot be; empty: it is there."""
        if digest not in self._loaded:
            reading = self._reading.pop(digest, None) or self._reader.submit(self._put, digest)
            try:
                self._loaded[digest] = reading.result()
            except (ValueError, OSError, torch.OutOfMemoryError) as error:
                return f"the adapter {digest[:12]} cannot be read: {error}"
        self._loaded[digest] = self._loaded.pop(digest)
        return ""

    def _put(self, digest: str) -> int:
        """Read an adapter, and give it to the decoder. Returns its bytes."""
        adapter = self._read(digest)
        self._slots.put(digest, adapter)
        return sum(part.a.nbytes + part.b.nbytes for part in adapter.parts.values())

    def read_ahead(self, digests: Collection[str]) -> list[str]:
        """Begin to read these adapters, and forget what was read ahead for nothing. Returns all that requests can have
        at once: those in memory, and those that cannot be read, for which `need` says why."""
        for digest in [digest for digest, reading in self._reading.items() if digest not in digests and reading.done()]:
            if not self._reading.pop(digest).exception():
                self._slots.drop(digest)
        for digest in digests:
            if digest not in self._loaded and digest not in self._reading:
                self._reading[digest] = self._reader.submit(self._put, digest)
        return [*self._loaded, *(digest for digest, reading in self._reading.items() if reading.done())]

    def drop(self, digest: str) -> None:
        """Forget an adapter that is in memory."""
        del self._loaded[digest]
        self._slots.drop(digest)

    def shrink(self, needed: Collection[str]) -> None:
        """Forget adapters that are not `needed`, as long as there are too many bytes."""
        for digest in [digest for digest in self._loaded if digest not in needed]:
            if sum(self._loaded.values()) > self._most:
                self.drop(digest)
