"""One copy to the device for all that an operation needs there; the host waits for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 16  # bytes: kernels are compiled for arrays that begin at multiples of so many, and for others
_DTYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.float64): torch.float64, np.dtype(np.float32): torch.float32}


def send(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """The arrays, of int64, float64 or float32, as tensors on the device."""
    offsets = np.cumsum([0, *(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays)]).tolist()
    packed = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    place = packed.numpy()
    for offset, array in zip(offsets, arrays, strict=False):
        place[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = packed.to(device, non_blocking=True)
    return [
        there[offset : offset + array.nbytes].view(_DTYPES[array.dtype]).view(array.shape)
        for offset, array in zip(offsets, arrays, strict=False)
    ]
