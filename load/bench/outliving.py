"""Whether the memory of a process outlives it: a descriptor over a socket, mapped by a second one, its maker killed.

On CUDA the memory is the driver's (virtual memory management), on a CPU a memfd: the steps are the same.
`python -m load.bench.outliving` runs them alone.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Protocol

SIZE = 64 << 20  # bytes
MADE, CHANGED = 0x5A, 0xA5  # what each process fills the memory with
POSIX_DESCRIPTOR, PINNED, ON_DEVICE, READ_WRITE = 1, 1, 1, 3  # of CUDA's driver API, cuda.h


class Memory(Protocol):
    def descriptor(self) -> int:
        """A new descriptor of the memory."""
        ...

    def fill(self, byte: int) -> None: ...

    def holds(self, byte: int) -> bool:
        """Whether each byte of the memory is this one."""
        ...


class HostMemory:
    """A memfd."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = os.memfd_create("outliving") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self._descriptor, SIZE)
        self._map = mmap.mmap(self._descriptor, SIZE)

    def descriptor(self) -> int:
        return os.dup(self._descriptor)

    def fill(self, byte: int) -> None:
        self._map[:] = bytes([byte]) * SIZE

    def holds(self, byte: int) -> bool:
        return self._map[:] == bytes([byte]) * SIZE


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class DeviceMemory:
    """Memory of the first GPU. Raises RuntimeError for a call that the driver refuses, OSError without a driver."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        where = _Location(ON_DEVICE, device.value)
        properties = _Properties(PINNED, POSIX_DESCRIPTOR, where)
        step, self._handle, self._address = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_uint64()
        self._call("cuMemGetAllocationGranularity", ctypes.byref(step), ctypes.byref(properties), 0)
        assert SIZE % step.value == 0, f"{step.value = }"
        size, none = ctypes.c_size_t(SIZE), ctypes.c_uint64(0)
        if descriptor is None:
            self._call("cuMemCreate", ctypes.byref(self._handle), size, ctypes.byref(properties), none)
        else:
            given = ctypes.c_void_p(descriptor)
            self._call("cuMemImportFromShareableHandle", ctypes.byref(self._handle), given, POSIX_DESCRIPTOR)
        self._call("cuMemAddressReserve", ctypes.byref(self._address), size, ctypes.c_size_t(0), none, none)
        self._call("cuMemMap", self._address, size, ctypes.c_size_t(0), self._handle, none)
        access = _Access(where, READ_WRITE)
        self._call("cuMemSetAccess", self._address, size, ctypes.byref(access), ctypes.c_size_t(1))

    def descriptor(self) -> int:
        found = ctypes.c_int(-1)
        self._call(
            "cuMemExportToShareableHandle", ctypes.byref(found), self._handle, POSIX_DESCRIPTOR, ctypes.c_uint64(0)
        )
        return found.value

    def fill(self, byte: int) -> None:
        self._call("cuMemsetD8_v2", self._address, ctypes.c_ubyte(byte), ctypes.c_size_t(SIZE))
        self._call("cuCtxSynchronize")

    def holds(self, byte: int) -> bool:
        room = ctypes.create_string_buffer(SIZE)
        self._call("cuMemcpyDtoH_v2", room, self._address, ctypes.c_size_t(SIZE))
        return room.raw == bytes([byte]) * SIZE

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._driver, name)(*arguments):
            raise RuntimeError(f"{name}: CUDA error {status}")


KINDS: dict[str, Callable[[int | None], Memory]] = {"cpu": HostMemory, "cuda": DeviceMemory}
MAKER = "maker"


def outlives(kind: str) -> dict[str, bool]:
    """What a second process sees of memory that a first one made, before and after that one's death."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60.0)
    command = [sys.executable, "-m", "load.bench.outliving", kind, MAKER, str(theirs.fileno())]
    maker = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()
    try:
        _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
        memory = KINDS[kind](descriptor)
        seen = {"seen while its maker lives": memory.holds(MADE)}
    finally:
        maker.kill()
        maker.wait()
        ours.close()
    seen["seen after its maker is killed"] = memory.holds(MADE)
    memory.fill(CHANGED)
    seen["written after its maker is killed"] = memory.holds(CHANGED)
    return seen


def _make(kind: str, to: int) -> None:
    memory = KINDS[kind](None)
    memory.fill(MADE)
    with socket.socket(fileno=to) as given:
        socket.send_fds(given, [b"."], [memory.descriptor()])
        signal.pause()


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    if sys.argv[2:3] == [MAKER]:
        _make(chosen, int(sys.argv[3]))
    print(json.dumps(outlives(chosen), indent=1))
