"""SharedMemory: what an engine process leaves to the spare of its rank when it dies.

On a CPU, weights and KV cache lie in a memfd: memory with a descriptor, in no file system, which the kernel takes back
when the last process that holds it ends, whatever ends it. The size of /dev/shm does not limit it.

The spare opens the descriptor through /proc while the other process lives. This needs nothing of the other process, not
even a thread that answers, and works only for processes of the same user. Each process maps the memory at an address of
its own, so objects in it are pickled: tensors as places in the memory, everything else by value.

Weights come first and are mapped read-only, so that a process that runs wild cannot leave wrong ones. The KV cache
follows, and the pickle, of which the header has a digest.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import logging
import math
import os
import pickle
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from services.engine.batch.buffers import Allocate
from services.engine.batch.kv_cache import KVCache
from services.engine.decoder import Decoder
from services.engine.startup.huge_pages import HUGE_PAGE, Memory, collapse, map_shared, protect

ALIGNMENT = 64  # bytes, a cache line
GROWTH = 1 << 30  # bytes of addresses; tensors one after the other share huge pages, and the rest takes no memory
HEADER = struct.Struct("<32sQQQ")  # a digest, the bytes that are read-only, and where the pickle is: offset, bytes

log = logging.getLogger(__name__)


class Contents(NamedTuple):
    """What the memory of an engine contains."""

    decoder: Decoder
    cache: KVCache


@dataclass(slots=True)
class _Region:
    """A part of the memory, mapped."""

    memory: Memory
    offset: int  # in the memfd
    used: int = 0  # bytes


class SharedMemory:
    """Holds one memory at a time: the own one of a loaded process, or the other process's, of a spare. Not
    thread-safe."""

    def __init__(self, build: str = "") -> None:
        """Memory of a process of another `build` is never used."""
        self._build = build
        self._descriptor: int | None = None
        self._maker: int | None = None  # a pidfd of the other process, whose memory it is
        self._regions: list[_Region] = []
        self._places: dict[int, int] = {}  # by address: where a storage that `zeros` made begins

    @property
    def path(self) -> str:
        """A path that opens the memory while this process lives; empty if it holds none."""
        return "" if self._descriptor is None else f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def hold(self, path: str) -> bool:
        """Hold the memory at `path` instead of the one before, and return whether it is another one. If its process has
        just ended, the one before is kept: what its names stand for is still in it.

        Raises PermissionError if this process may not."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        if self._descriptor is not None and os.path.sameopenfile(descriptor, self._descriptor):
            os.close(descriptor)
            return False
        self.release()
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # its process has just ended
            self._maker = os.pidfd_open(int(path.split("/")[2]))
        return True

    def kill_maker(self) -> bool:
        """Kill the other process whose memory this is. Returns whether it lived. It leaves what any death leaves."""
        if self._maker is None:
            return False
        try:
            signal.pidfd_send_signal(self._maker, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def release(self) -> None:
        """Hold no memory. Tensors in it stay valid."""
        for descriptor in (self._descriptor, self._maker):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptor = self._maker = None
        self._regions.clear()
        self._places.clear()

    def restore(self, identity: str) -> Contents | None:
        """What `fill` has put into the memory under the same `identity`; None if there is nothing. Its tensors are the
        memory itself."""
        if self._descriptor is None:
            return None
        header = os.pread(self._descriptor, HEADER.size, 0)
        if len(header) < HEADER.size:
            return None
        digest, constants, offset, length = HEADER.unpack(header)
        data = os.pread(self._descriptor, length, offset) if offset + length <= self._end() else b""
        if digest != self._digest(identity, data):
            log.info("the memory of the other process is not used: it has another identity, or was not filled")
            return None
        memory = map_shared(self._descriptor, os.fstat(self._descriptor).st_size)
        protect(memory, constants)
        unpickler = _Unpickler(memory, data)
        return Contents(unpickler.load(), unpickler.load())

    def fill(self, identity: str, load: Callable[[Allocate], Decoder], make: Callable[..., KVCache]) -> Contents:
        """Hold a new memory with a decoder and its KV cache, under an `identity` of all that these depend on.

        `load` gets a function that allocates tensors in the memory; other tensors are copied. `make` gets the decoder
        and the function. Returns what `restore` does. Raises OSError if the memory cannot be had.
        """
        self.release()
        self._descriptor = os.memfd_create("orca-engine")
        self._grow(0).used = HEADER.size
        stream = io.BytesIO()
        pickler = _Pickler(stream, self)
        decoder = load(self.zeros)
        pickler.dump(decoder)
        constants = os.fstat(self._descriptor).st_size
        for region in self._regions:
            collapse(ctypes.addressof(region.memory), region.used)
        self._grow(0)
        pickler.dump(make(decoder, self.zeros))
        data = stream.getvalue()
        offset = self._end()
        os.pwrite(self._descriptor, data, offset)
        os.ftruncate(self._descriptor, -(-self._end() // HUGE_PAGE) * HUGE_PAGE)
        digest = self._digest(identity, data)
        header = HEADER.pack(digest, constants, offset, len(data))
        os.pwrite(self._descriptor, header, 0)  # last: a memory without it counts as empty
        self._regions.clear()
        self._places.clear()
        contents = self.restore(identity)
        assert contents is not None
        return contents

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A tensor of zeros in the memory. It gets pages when it is first written."""
        assert device.type == "cpu", device
        size = math.prod(shape) * int(dtype.itemsize)
        if size == 0:
            return torch.zeros(shape, dtype=dtype)
        region = self._regions[-1]
        start = -(-region.used // ALIGNMENT) * ALIGNMENT
        if start + size > len(region.memory):
            region, start = self._grow(size), 0
        region.used = start + size
        tensor = torch.frombuffer(region.memory, dtype=torch.uint8, count=size, offset=start)
        self._places[tensor.data_ptr()] = region.offset + start
        return tensor.view(dtype).view(shape)

    def place(self, storage: torch.UntypedStorage) -> int:
        """Where a storage is in the memory, as an offset; it is copied if it is elsewhere."""
        address = storage.data_ptr()
        if address not in self._places:
            copy = self.zeros((storage.nbytes(),), torch.uint8, torch.device("cpu"))
            copy.untyped_storage().copy_(storage, non_blocking=False)
            self._places[address] = self._places[copy.data_ptr()]
        return self._places[address]

    def _digest(self, identity: str, data: bytes) -> bytes:
        return hashlib.sha256(repr((self._build, identity, data)).encode()).digest()

    def _end(self) -> int:
        assert self._descriptor is not None
        return os.fstat(self._descriptor).st_size

    def _grow(self, size: int) -> _Region:
        """Another region of at least `size` bytes."""
        assert self._descriptor is not None
        offset = self._end()
        length = -(-max(size, GROWTH) // HUGE_PAGE) * HUGE_PAGE
        os.ftruncate(self._descriptor, offset + length)
        self._regions.append(_Region(map_shared(self._descriptor, length, offset), offset))
        return self._regions[-1]


class _Pickler(pickle.Pickler):
    """Pickles storages as places in the memory: offset, bytes, dtype."""

    def __init__(self, stream: io.BytesIO, memory: SharedMemory) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._memory = memory
        self._seen: list[Any] = []  # kept alive, so that no other storage gets the address of one

    def persistent_id(self, value: Any) -> tuple[int, int, torch.dtype] | None:
        if not isinstance(value, torch.storage.TypedStorage):
            return None
        storage = value._untyped_storage
        self._seen.append(storage)
        size = storage.nbytes()
        return (self._memory.place(storage) if size else 0), size, value.dtype


class _Unpickler(pickle.Unpickler):
    """The reverse, over mapped memory."""

    def __init__(self, memory: Memory, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._mapped = memory

    def persistent_load(self, place: tuple[int, int, torch.dtype]) -> torch.storage.TypedStorage:
        offset, size, dtype = place
        if size:
            storage = torch.frombuffer(self._mapped, dtype=torch.uint8, count=size, offset=offset).untyped_storage()
        else:
            storage = torch.UntypedStorage(0)
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
