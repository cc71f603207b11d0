"""Memory of a GPU that outlives the process that has made it: CUDA's virtual memory management, called by ctypes.

A chunk of memory has a file descriptor. Another process that gets it maps the chunk at an address of its own. The
driver takes the memory back when the last process that has a descriptor or a mapping of it ends, whatever ends it.

The structures and numbers are those of cuda.h.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import weakref
from typing import Any

import torch

STEP = 1 << 21  # bytes: sizes of chunks are multiples of it
POSIX_DESCRIPTOR, PINNED, ON_DEVICE = 1, 1, 1
READ_ONLY, READ_WRITE = 1, 3
MPS_ENABLED = 133  # an attribute of a device
NOTHING = ctypes.c_uint64(0)

log = logging.getLogger(__name__)


class DriverError(OSError):
    """The driver refuses a call, or there is none."""


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


class CudaMemory:
    """See DeviceMemory: that of torch's current GPU."""

    alignment = 512  # bytes, as of torch's own allocations

    def create(self, size: int) -> tuple[int, CudaMapping]:
        """See DeviceMemory. Raises DriverError, also if MPS runs on the device."""
        driver = _driver()
        driver.refuse_mps()
        handle, descriptor = ctypes.c_uint64(), ctypes.c_int(-1)
        properties = _Properties(PINNED, POSIX_DESCRIPTOR, driver.here)
        step = ctypes.c_size_t()
        driver("cuMemGetAllocationGranularity", ctypes.byref(step), ctypes.byref(properties), 0)
        assert STEP % step.value == 0, f"{step.value = }"
        wanted = ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), NOTHING
        try:
            driver("cuMemCreate", *wanted)
        except DriverError:  # torch may keep memory that it does not use, of which the driver knows nothing
            torch.cuda.empty_cache()
            driver("cuMemCreate", *wanted)
        try:
            driver("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, POSIX_DESCRIPTOR, NOTHING)
            return descriptor.value, CudaMapping(handle, size)
        except DriverError:
            if descriptor.value >= 0:  # it alone would keep the memory
                os.close(descriptor.value)
            raise
        finally:
            driver("cuMemRelease", handle)  # the mapping keeps it

    def map(self, descriptor: int, size: int) -> CudaMapping:
        """See DeviceMemory. Raises DriverError."""
        driver, handle = _driver(), ctypes.c_uint64()
        given = ctypes.c_void_p(descriptor)
        driver("cuMemImportFromShareableHandle", ctypes.byref(handle), given, POSIX_DESCRIPTOR)
        try:
            return CudaMapping(handle, size)
        finally:
            driver("cuMemRelease", handle)

    def check(self) -> None:
        """See DeviceMemory. An error of the device is raised again by each call."""
        torch.cuda.synchronize()


class CudaMapping:
    """See Mapping. The memory is unmapped when nothing refers to this or to one of its tensors."""

    def __init__(self, handle: ctypes.c_uint64, size: int) -> None:
        driver, self.size, address = _driver(), size, ctypes.c_uint64()
        length, zero = ctypes.c_size_t(size), ctypes.c_size_t(0)
        driver("cuMemAddressReserve", ctypes.byref(address), length, zero, NOTHING, NOTHING)
        try:
            driver("cuMemMap", address, length, zero, handle, NOTHING)
        except DriverError:
            driver("cuMemAddressFree", address, length)
            raise
        self._address = address.value
        unmapping = weakref.finalize(self, _unmap, driver, address, length)
        unmapping.atexit = False  # tensors may be in use until the very end
        self._allow(READ_WRITE)

    def protect(self) -> None:
        """See Mapping. What writes to the memory may still run."""
        try:
            _driver()("cuCtxSynchronize")
            self._allow(READ_ONLY)
        except DriverError as error:
            log.warning("this driver does not protect weights from a process that runs wild: %s", error)

    def _allow(self, access: int) -> None:
        place, one = ctypes.c_uint64(self._address), ctypes.c_size_t(1)
        allowed = _Access(_driver().here, access)
        _driver()("cuMemSetAccess", place, ctypes.c_size_t(self.size), ctypes.byref(allowed), one)

    def tensor(self, offset: int, size: int) -> torch.Tensor:
        """See Mapping."""
        found: torch.Tensor = torch.as_tensor(_Part(self, self._address + offset, size), device=_driver().device)
        return found


class _Part:
    """What torch makes a tensor from, which keeps this alive."""

    def __init__(self, mapping: CudaMapping, address: int, size: int) -> None:
        self._mapping = mapping
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),  # torch takes no memory that says it is read-only
            "strides": None,
            "version": 2,
        }


def _unmap(driver: _Driver, address: ctypes.c_uint64, length: ctypes.c_size_t) -> None:
    """The work that uses the memory may still run. After an error of the device nothing is unmapped: the process
    ends."""
    try:
        driver("cuCtxSynchronize")
        driver("cuMemUnmap", address, length)
        driver("cuMemAddressFree", address, length)
    except DriverError as error:
        log.warning("memory of the GPU stays mapped: %s", error)


class _Driver:
    """CUDA's driver, with the context that torch uses."""

    def __init__(self, library: Any, device: torch.device) -> None:
        self._library, self.device = library, device
        self.here = _Location(ON_DEVICE, device.index)
        self._device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(self._device), device.index)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call the driver with the context, which belongs to a thread. Raises DriverError."""
        if self._context:
            self._library.cuCtxSetCurrent(self._context)
        if status := getattr(self._library, name)(*arguments):
            raise DriverError(f"{name}: CUDA error {status}")

    def refuse_mps(self) -> None:
        """Raises DriverError if processes share one context of the device."""
        shared = ctypes.c_int()
        try:
            self("cuDeviceGetAttribute", ctypes.byref(shared), MPS_ENABLED, self._device)
        except DriverError:  # the driver is older than the attribute
            log.warning("this driver does not say whether MPS runs, under which no engine may be taken over")
        if shared.value:
            raise DriverError(
                "MPS runs on this GPU (CUDA_MPS_PIPE_DIRECTORY), where the end of a process does not end its work; "
                "stop it with `echo quit | nvidia-cuda-mps-control`"
            )


@functools.cache
def _driver() -> _Driver:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(f"there is no CUDA driver: {error}") from error
    return _Driver(library, torch.device("cuda", torch.cuda.current_device()))
