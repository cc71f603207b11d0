"""Memory for tensors: huge pages on a CPU, one packed copy to a device, and one copy from there."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from services.started import Started, finished

_ALIGNMENT = 16  # bytes: Triton compiles other kernels for arrays that do not begin at a multiple of it
_DTYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.float32): torch.float32,
}

Array = npt.NDArray[Any]
Allocate = Callable[[tuple[int, ...], torch.dtype, torch.device], torch.Tensor]  # zeros of a shape and dtype


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of zeros. On a CPU it gets memory when it is first written, in huge pages where the system has them:
    otherwise a core spends much of its time on looking up addresses."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * int(dtype.itemsize)
    pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8, count=size).view(dtype).view(shape)


class ReusedBuffer:
    """Float32 tensors [rows, columns] on a CPU, each in the memory of the one before."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def __call__(self, rows: int, columns: int) -> torch.Tensor:
        """A tensor whose contents are undefined."""
        if self._memory.numel() < rows * columns:
            self._memory = zeros((rows * columns,), torch.float32, torch.device("cpu"))
        return self._memory[: rows * columns].view(rows, columns)


def send(arrays: Sequence[Array], device: torch.device) -> list[torch.Tensor]:
    """The arrays, of int64, int32, float64 or float32, as tensors on the device: one copy, and the host does not wait
    for it."""
    return unpack(pack(arrays, pinned=device.type == "cuda").to(device, non_blocking=True), arrays)


def fetch(tensor: torch.Tensor) -> Started[Array]:
    """A tensor on its way to the host: one copy, behind the work that makes it. The host does not wait before it asks
    for the result."""
    if tensor.device.type != "cuda":
        return finished(tensor.numpy())
    there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    there.copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def done() -> bool:
        try:
            return bool(arrived.query())
        except RuntimeError:  # the device has failed, as `result` says
            return True

    def result() -> Array:
        arrived.synchronize()
        return there.numpy()

    return Started(done, result)


def pack(arrays: Sequence[Array], pinned: bool) -> torch.Tensor:
    """The bytes of the arrays one after another [bytes], uint8, on the host; each array begins at a multiple of 16
    bytes."""
    offsets = _offsets(arrays)
    packed = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=pinned)
    memory = packed.numpy()
    for offset, array in zip(offsets, arrays, strict=False):
        memory[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return packed


def unpack(packed: torch.Tensor, arrays: Sequence[Array]) -> list[torch.Tensor]:
    """The parts of `packed` [bytes], wherever it is, with the shapes and dtypes of `arrays`, which are not read."""
    return [
        packed[offset : offset + array.nbytes].view(_DTYPES[array.dtype]).view(array.shape)
        for offset, array in zip(_offsets(arrays), arrays, strict=False)
    ]


def _offsets(arrays: Sequence[Array]) -> list[int]:
    """Where each array begins, and the end, in bytes."""
    offsets: list[int] = np.cumsum([0, *(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays)]).tolist()
    return offsets
