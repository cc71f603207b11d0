"""DeviceMemory: what SharedMemory needs of a device whose memory outlives a process."""

from __future__ import annotations

from typing import Protocol

import torch

STEP = 1 << 21  # bytes: sizes of chunks are multiples of it


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
