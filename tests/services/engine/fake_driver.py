"""A CUDA driver whose device is the host: its memory is memfds, so that memory and mappings outlive as on a GPU."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
from collections.abc import Callable
from typing import Any

import torch

from services.engine.startup import cuda_memory, huge_pages
from services.engine.startup.cuda_memory import READ_WRITE, CudaMapping, CudaMemory, _Driver
from services.engine.startup.huge_pages import HUGE_PAGE
from services.engine.startup.shared_memory import DeviceMemory

FIXED = 0x10
REFUSED = 801  # CUDA_ERROR_NOT_SUPPORTED


class FakeDriver:
    """`libcuda.so.1`, as far as it is called. `refused`: names of calls that fail."""

    def __init__(self) -> None:
        self.mps = 0
        self.refused: set[str] = set()
        self.calls: list[str] = []
        self._handles: dict[int, int] = {}  # descriptors
        self._numbers = itertools.count(1)

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if not name.startswith("cu"):
            return found
        self.calls.append(name)
        return (lambda *_: REFUSED) if name in self.refused else lambda *arguments: found(*arguments) or 0

    def cuInit(self, flags: int) -> None: ...

    def cuDeviceGet(self, device: Any, index: int) -> None: ...

    def cuDevicePrimaryCtxRetain(self, context: Any, device: ctypes.c_int) -> None:
        context._obj.value = 1

    def cuCtxSetCurrent(self, context: ctypes.c_void_p) -> None: ...

    def cuCtxSynchronize(self) -> None: ...

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: ctypes.c_int) -> None:
        assert attribute == 133
        value._obj.value = self.mps

    def cuMemGetAllocationGranularity(self, step: Any, properties: Any, which: int) -> None:
        step._obj.value = HUGE_PAGE

    def cuMemCreate(self, handle: Any, size: ctypes.c_size_t, properties: Any, flags: ctypes.c_uint64) -> None:
        assert properties._obj.handles == 1
        descriptor = os.memfd_create("fake-device")
        os.ftruncate(descriptor, size.value)
        handle._obj.value = self._new(descriptor)

    def cuMemExportToShareableHandle(
        self, found: Any, handle: ctypes.c_uint64, kind: int, flags: ctypes.c_uint64
    ) -> None:
        found._obj.value = os.dup(self._handles[handle.value])

    def cuMemImportFromShareableHandle(self, handle: Any, descriptor: ctypes.c_void_p, kind: int) -> None:
        handle._obj.value = self._new(os.dup(descriptor.value or 0))

    def cuMemRelease(self, handle: ctypes.c_uint64) -> None:
        os.close(self._handles.pop(handle.value))

    def cuMemAddressReserve(
        self, address: Any, size: ctypes.c_size_t, alignment: Any, where: Any, flags: ctypes.c_uint64
    ) -> None:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address._obj.value = huge_pages._mmap(None, size.value, 0, private, -1, 0)

    def cuMemMap(
        self, address: ctypes.c_uint64, size: ctypes.c_size_t, offset: Any, handle: ctypes.c_uint64, flags: Any
    ) -> None:
        shared, descriptor = mmap.MAP_SHARED | FIXED, self._handles[handle.value]
        huge_pages._mmap(address.value, size.value, 0, shared, descriptor, 0)

    def cuMemSetAccess(self, address: ctypes.c_uint64, size: ctypes.c_size_t, access: Any, count: Any) -> None:
        flags = mmap.PROT_READ | (mmap.PROT_WRITE if access._obj.flags == READ_WRITE else 0)
        assert huge_pages._libc.mprotect(address.value, size.value, flags) == 0

    def cuMemUnmap(self, address: ctypes.c_uint64, size: ctypes.c_size_t) -> None:
        huge_pages._libc.munmap(address.value, size.value)

    def cuMemAddressFree(self, address: ctypes.c_uint64, size: ctypes.c_size_t) -> None: ...

    def _new(self, descriptor: int) -> int:
        number = next(self._numbers)
        self._handles[number] = descriptor
        return number


class FakeDevice(CudaMemory):
    """`check` fails as after an error of the device."""

    faulty = False

    def check(self) -> None:
        if self.faulty:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


Set = Callable[[Any, str, Any], None]  # setattr, or what undoes it later


def install(set: Set = setattr) -> tuple[FakeDriver, dict[str, DeviceMemory]]:
    """Make it this process's driver. Returns it, and the devices of a SharedMemory that lie in its memory."""
    library = FakeDriver()
    driver = _Driver(library, torch.device("cuda", 0))
    set(cuda_memory, "_driver", lambda: driver)
    set(CudaMapping, "tensor", _tensor)
    return library, {"cpu": FakeDevice()}


def _tensor(mapping: CudaMapping, offset: int, size: int) -> torch.Tensor:
    """torch makes CUDA's tensors from an address, and none of a CPU."""
    memory = (ctypes.c_ubyte * size).from_address(mapping._address + offset)
    memory.mapping = mapping  # type: ignore[attr-defined]  # keeps it mapped
    return torch.frombuffer(memory, dtype=torch.uint8)
