"""Large tensors in large pages: with small ones, a core spends much of its time on finding the next."""

from __future__ import annotations

import math
import mmap

import torch


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of zeros; on a CPU its memory comes when it is first written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * int(dtype.itemsize)
    pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8, count=size).view(dtype).view(shape)


class Reused:
    """Float32 tensors [rows, columns] on the CPU, one after the other in the same memory."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def __call__(self, rows: int, columns: int) -> torch.Tensor:
        """Its contents are whatever was there."""
        if self._memory.numel() < rows * columns:
            self._memory = zeros((rows * columns,), torch.float32, torch.device("cpu"))
        return self._memory[: rows * columns].view(rows, columns)
