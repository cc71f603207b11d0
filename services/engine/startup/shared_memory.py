"""SharedMemory: what an engine process leaves to the spare of its rank when it dies.

On a CPU, weights and KV cache lie in a memfd: memory with a descriptor, in no file system, which the kernel takes back
when the last process that holds it ends, whatever ends it. The size of /dev/shm does not limit it.

The spare opens the descriptor through /proc while the other process lives. This needs nothing of the other process, not
even a thread that answers, and works only for processes of the same user. Each process maps the memory at an address of
its own, so objects in it are pickled: tensors as places in the memory, everything else by value.

The tensors of a GPU lie in chunks of its memory (see `DeviceMemory`), whose descriptors the other process hands over.
The memfd has the rest: the pickle, and the record of the blocks.

Weights come first and are mapped read-only, so that a process that runs wild cannot leave wrong ones. The KV cache
follows, and the pickle, of which the header has a digest.

When a process has died, what it has started on a GPU may still run, and write, although its sockets are closed. It ends
when the driver's files are closed, which takes the context down, and the kernel reports the end of a process only after
it has closed all its files. So nothing writes any more once a pidfd of the process is readable (see `end_maker`). A
child of the process that has not called `exec` would keep these files open, and with them each socket of the process,
so the caller looks at one of these, too. Under MPS another process has the context, so nothing is shared there.
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
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as ReadOnlyDict
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from services.engine.batch.buffers import Allocate
from services.engine.batch.kv_cache import KVCache
from services.engine.decoder import Decoder
from services.engine.startup.cuda_memory import STEP, CudaMemory
from services.engine.startup.descriptors import DescriptorServer, receive
from services.engine.startup.huge_pages import HUGE_PAGE, Memory, collapse, map_shared, protect

ALIGNMENT = 64  # bytes, a cache line
GROWTH = 1 << 30  # bytes of addresses; tensors one after the other share huge pages, and the rest takes no memory
CHUNK = 1 << 26  # bytes of a device's memory, all of which is taken; a larger tensor has a chunk of its own
# a digest, the bytes that are read-only, where the pickle is (offset, bytes), and the number of chunks
HEADER = struct.Struct("<32sQQQQ")
HEALTH = struct.Struct("<d")  # behind the header: when an iteration last began or ended while one runs, or one of these
IDLE, FAULTY = 0.0, -1.0
HUNG = 9.0  # seconds of an iteration after which its GPU counts as faulty; owners wait a little longer for each
MEMFD = ""  # in place of a device's type

log = logging.getLogger(__name__)


class Mapping(Protocol):
    """A chunk of the device's memory at an address of this process."""

    size: int  # bytes

    def tensor(self, offset: int, size: int) -> torch.Tensor:
        """A part of the memory [size], uint8, as a storage of its own, which keeps the memory mapped."""
        ...

    def protect(self) -> None:
        """Let a write to the memory end in an error, here and not in other mappings."""
        ...


class DeviceMemory(Protocol):
    """Makes and maps chunks of memory that have descriptors. Raises OSError for what the device refuses."""

    alignment: int  # bytes, of tensors

    def create(self, size: int) -> tuple[int, Mapping]:
        """A new chunk of `size` bytes, mapped, and its descriptor, which the caller closes."""
        ...

    def map(self, descriptor: int, size: int) -> Mapping:
        """The chunk with this descriptor, which stays open."""
        ...

    def check(self) -> None:
        """Wait until the device has done all that it was told. Raises an exception if it has reported an error to this
        process."""
        ...


Place = tuple[tuple[int, int], int, torch.dtype]  # of a storage: chunk and offset, bytes, dtype


class Contents(NamedTuple):
    """What the memory of an engine contains."""

    decoder: Decoder
    cache: KVCache


class _Chunk(NamedTuple):
    """A chunk of a device's memory."""

    device: str  # its type
    size: int  # bytes


@dataclass(slots=True)
class _Region:
    """A part of the memory that is being filled."""

    mapping: Mapping
    chunk: int  # 0: the memfd; else which chunk, counted from 1
    offset: int = 0  # in the memfd
    used: int = 0  # bytes

    def place(self, size: int, alignment: int) -> int | None:
        """Where so many bytes are free."""
        start = -(-self.used // alignment) * alignment
        return start if start + size <= self.mapping.size else None


class _HostMapping:
    """See Mapping: of a memfd."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.size = memory, len(memory)

    def tensor(self, offset: int, size: int) -> torch.Tensor:
        return torch.frombuffer(self.memory, dtype=torch.uint8, count=size, offset=offset)

    def protect(self) -> None:
        protect(self.memory, self.size)


class SharedMemory:
    """Holds one memory at a time: the own one of a loaded process, or the other process's, of a spare. Not
    thread-safe."""

    def __init__(self, build: str = "", devices: ReadOnlyDict[str, DeviceMemory] | None = None) -> None:
        """Memory of a process of another `build` is never used. `devices`, by type: those whose tensors do not lie in
        the memfd; GPUs by default."""
        self._build = build
        self._devices = {"cuda": CudaMemory()} if devices is None else devices
        self._descriptor: int | None = None
        self._chunks: list[int] = []  # descriptors
        self._server: DescriptorServer | None = None
        self._maker: int | None = None  # a pidfd of the other process, whose memory it is
        self._failed = False  # whether this process has noted a fault
        self._regions: dict[str, list[_Region]] = {}  # by device
        self._table: list[_Chunk] = []
        self._mapped: list[Mapping] = []  # the chunks, while the memory is filled
        self._places: dict[int, tuple[int, int]] = {}  # by address: where a storage that `zeros` made begins

    @property
    def path(self) -> str:
        """A path that opens the memory while this process lives; empty if it holds none."""
        return "" if self._descriptor is None else f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @property
    def device_bytes(self) -> int:
        """Bytes of devices' memory that `fill` has taken so far."""
        return sum(chunk.size for chunk in self._table)

    def hold(self, path: str) -> bool:
        """Hold the memory at `path` instead of the one before, and return whether it is another one. If its process has
        just ended, the one before is kept: what its names stand for is still in it.

        Raises PermissionError if this process may not."""
        process = path.split("/")[2]
        pid = os.getpid() if process == "self" else int(process)
        with contextlib.ExitStack() as undo:
            try:
                maker = os.pidfd_open(pid)  # first: it is the process that has the memory now
                undo.callback(os.close, maker)
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                undo.callback(os.close, descriptor)
                if self._descriptor is not None and os.path.sameopenfile(descriptor, self._descriptor):
                    return False
                chunks = receive(_name(path, descriptor)) if _count_chunks(descriptor) else []
            except PermissionError:
                raise
            except OSError as error:
                log.info("the memory at %s is not held: %s", path, error)
                return False
            undo.pop_all()
        self.release()
        self._descriptor, self._chunks, self._maker = descriptor, chunks, maker
        self._offer()
        return True

    def end_maker(self, seconds: float) -> bool:
        """Kill the other process whose memory this is. Returns whether it has ended within so many seconds, after which
        nothing of it writes to the memory; False if the memory is not another process's. It leaves what any death
        leaves."""
        if self._maker is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._maker, signal.SIGKILL)
        end = select.poll()
        end.register(self._maker, select.POLLIN)
        return bool(end.poll(1000 * seconds))

    def release(self) -> None:
        """Hold no memory. Tensors in it stay valid."""
        if self._server:
            self._server.close()
        for descriptor in (self._descriptor, self._maker, *self._chunks):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptor = self._maker = self._server = None
        self._failed = False
        for kept in (self._chunks, self._regions, self._table, self._mapped, self._places):
            kept.clear()

    @contextlib.contextmanager
    def iteration(self, goes_on: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Note in the memory, if a part of it is a device's, that an iteration is started or ends, and an error of the
        device meanwhile. `goes_on`: whether the device has work afterwards."""
        if not self._chunks:
            yield
            return
        self._note(time.monotonic())
        try:
            yield
        except Exception:
            self._note(FAULTY if self._device_fails() else IDLE)
            raise
        self._note(time.monotonic() if goes_on() else IDLE)

    def rest(self) -> None:
        """Note that no iteration runs."""
        if self._chunks:
            self._note(IDLE)

    @property
    def sound(self) -> bool:
        """Whether no process has noted an error of the device, or died in an iteration that did not end."""
        if not self._chunks:
            return True
        assert self._descriptor is not None
        (since,) = HEALTH.unpack(os.pread(self._descriptor, HEALTH.size, HEADER.size))
        return bool(since == IDLE or time.monotonic() - since < HUNG)

    def restore(self, identity: str, mapped: Sequence[Mapping] = ()) -> Contents | None:
        """What `fill` has put into the memory under the same `identity`; None if there is nothing. Its tensors are the
        memory itself. `mapped`: the chunks, if this process has them mapped already. Raises OSError if a device does
        not map it."""
        if self._descriptor is None:
            return None
        header = os.pread(self._descriptor, HEADER.size, 0)
        if len(header) < HEADER.size:
            return None
        digest, constants, offset, length, _ = HEADER.unpack(header)
        data = os.pread(self._descriptor, length, offset) if offset + length <= self._end() else b""
        if digest != self._digest(identity, data):
            log.info("the memory of the other process is not used: it has another identity, or was not filled")
            return None
        if not self.sound:
            log.warning("the memory of the other process is not used: its GPU had a fault")
            return None
        memory = map_shared(self._descriptor, os.fstat(self._descriptor).st_size)
        protect(memory, constants)
        stream = io.BytesIO(data)
        constant_chunks, table = pickle.load(stream)
        mapped = mapped or [
            self._devices[chunk.device].map(descriptor, chunk.size)
            for descriptor, chunk in zip(self._chunks, table, strict=True)
        ]
        for chunk in mapped[:constant_chunks]:
            chunk.protect()
        unpickler = _Unpickler(stream, [_HostMapping(memory), *mapped])
        return Contents(unpickler.load(), unpickler.load())

    def fill(self, identity: str, load: Callable[[Allocate], Decoder], make: Callable[..., KVCache]) -> Contents:
        """Hold a new memory with a decoder and its KV cache, under an `identity` of all that these depend on.

        `load` gets a function that allocates tensors in the memory; other tensors are copied. `make` gets the decoder
        and the function. Returns what `restore` does. Raises OSError if the memory cannot be had.
        """
        self.release()
        self._descriptor = os.memfd_create("orca-engine")
        self._grow(0, MEMFD).used = HEADER.size + HEALTH.size
        stream = io.BytesIO()
        pickler = _Pickler(stream, self)
        decoder = load(self.zeros)
        pickler.dump(decoder)
        constants, constant_chunks = os.fstat(self._descriptor).st_size, len(self._chunks)
        for region in self._regions[MEMFD]:
            assert isinstance(region.mapping, _HostMapping)
            collapse(ctypes.addressof(region.mapping.memory), region.used)
        self._regions.clear()
        self._grow(0, MEMFD)
        pickler.dump(make(decoder, self.zeros))
        data = pickle.dumps((constant_chunks, self._table)) + stream.getvalue()
        offset = self._end()
        os.pwrite(self._descriptor, data, offset)
        os.ftruncate(self._descriptor, -(-self._end() // HUGE_PAGE) * HUGE_PAGE)
        for kind in {chunk.device for chunk in self._table}:
            self._devices[kind].check()  # it may still copy weights, which are about to be read-only
        digest = self._digest(identity, data)
        header = HEADER.pack(digest, constants, offset, len(data), len(self._chunks))
        os.pwrite(self._descriptor, header, 0)  # last: a memory without it counts as empty
        contents = self.restore(identity, self._mapped)
        assert contents is not None
        self._mapped.clear()
        self._regions.clear()
        self._places.clear()
        self._offer()
        return contents

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A tensor of zeros in the memory. On a CPU it gets pages when it is first written."""
        size = math.prod(shape) * int(dtype.itemsize)
        if size == 0:
            return torch.zeros(shape, dtype=dtype, device=device)
        source = self._devices.get(device.type)
        assert source or device.type == "cpu", device
        kind, alignment = (device.type, source.alignment) if source else (MEMFD, ALIGNMENT)
        placed = ((region, region.place(size, alignment)) for region in self._regions.get(kind, ()))
        region, start = next(((region, start) for region, start in placed if start is not None), (None, 0))
        if region is None:
            region = self._grow(size, kind)
        region.used = start + size
        tensor = region.mapping.tensor(start, size)
        if source:
            tensor.zero_()
        self._places[tensor.data_ptr()] = region.chunk, region.offset + start
        return tensor.view(dtype).view(shape)

    def place(self, storage: torch.UntypedStorage) -> tuple[int, int]:
        """Where a storage is in the memory: its chunk and an offset; it is copied if it is elsewhere."""
        address = storage.data_ptr()
        if address not in self._places:
            copy = self.zeros((storage.nbytes(),), torch.uint8, storage.device)
            copy.untyped_storage().copy_(storage, non_blocking=False)
            self._places[address] = self._places[copy.data_ptr()]
        return self._places[address]

    def _digest(self, identity: str, data: bytes) -> bytes:
        return hashlib.sha256(repr((self._build, identity, data)).encode()).digest()

    def _end(self) -> int:
        assert self._descriptor is not None
        return os.fstat(self._descriptor).st_size

    def _grow(self, size: int, kind: str) -> _Region:
        """Another region of at least `size` bytes."""
        assert self._descriptor is not None
        if kind == MEMFD:
            offset = self._end()
            length = -(-max(size, GROWTH) // HUGE_PAGE) * HUGE_PAGE
            os.ftruncate(self._descriptor, offset + length)
            region = _Region(_HostMapping(map_shared(self._descriptor, length, offset)), 0, offset)
        else:
            descriptor, mapping = self._devices[kind].create(-(-max(size, CHUNK) // STEP) * STEP)
            self._chunks.append(descriptor)
            self._table.append(_Chunk(kind, mapping.size))
            self._mapped.append(mapping)
            region = _Region(mapping, len(self._chunks))
        self._regions.setdefault(kind, []).append(region)
        return region

    def _offer(self) -> None:
        """Let other processes hold the memory, too."""
        if self._chunks:
            assert self._descriptor is not None
            self._server = DescriptorServer(_name(self.path, self._descriptor), self._chunks)

    def _device_fails(self) -> bool:
        try:
            for device in self._devices.values():
                device.check()
        except Exception as error:
            log.error("the GPU has a fault, so nothing in its memory is used again: %s", error)
            return True
        return False

    def _note(self, health: float) -> None:
        """Nothing takes a fault back."""
        assert self._descriptor is not None
        if not self._failed:
            os.pwrite(self._descriptor, HEALTH.pack(health), HEADER.size)
        self._failed = self._failed or health == FAULTY


def _name(path: str, descriptor: int) -> str:
    """Under which the chunks are given that belong to the memfd at this path, which the caller has open, too."""
    return f"orca{path}-{os.fstat(descriptor).st_ino}"


def _count_chunks(descriptor: int) -> int:
    header = os.pread(descriptor, HEADER.size, 0)
    return int(HEADER.unpack(header)[-1]) if len(header) == HEADER.size else 0


class _Pickler(pickle.Pickler):
    """Pickles storages as places in the memory: chunk and offset, bytes, dtype."""

    def __init__(self, stream: io.BytesIO, memory: SharedMemory) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._memory = memory
        self._seen: list[Any] = []  # kept alive, so that no other storage gets the address of one

    def persistent_id(self, value: Any) -> Place | None:
        if not isinstance(value, torch.storage.TypedStorage):
            return None
        storage = value._untyped_storage
        self._seen.append(storage)
        size = storage.nbytes()
        return (self._memory.place(storage) if size else (0, 0)), size, value.dtype


class _Unpickler(pickle.Unpickler):
    """Makes storages of places in mapped memory, see _Pickler."""

    def __init__(self, stream: io.BytesIO, mappings: Sequence[Mapping]) -> None:
        """`mappings`: of the memfd, and of the chunks."""
        super().__init__(stream)
        self._mappings = mappings

    def persistent_load(self, place: Place) -> torch.storage.TypedStorage:
        (chunk, offset), size, dtype = place
        storage = self._mappings[chunk].tensor(offset, size).untyped_storage() if size else torch.UntypedStorage(0)
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
