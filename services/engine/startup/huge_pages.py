"""Shared memory in huge pages, without which a core spends much of its time on looking up addresses.

Linux gives shared memory huge pages by itself only where an administrator has allowed that
(`/sys/kernel/mm/transparent_hugepage/shmem_enabled`). Where it has not, a process can ask for each page
(`MADV_COLLAPSE`, from Linux 6.1 on).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref
from collections.abc import Iterable, Sequence
from threading import Thread
from typing import Any

import torch

HUGE_PAGE = 1 << 21  # bytes
_MADV_DONTNEED, _MADV_REMOVE, _MADV_COLLAPSE = 4, 9, 25
_MAP_FIXED = 0x10
_PROT_NONE = 0
_FAILED = ctypes.c_void_p(-1).value

Memory = ctypes.Array[ctypes.c_ubyte]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = _libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def map_shared(descriptor: int, size: int, offset: int = 0) -> Memory:
    """Map `size` bytes of a memfd from `offset` on, at an address where they can be huge pages. Both are multiples of
    HUGE_PAGE. The memory is unmapped when nothing refers to the result. Raises OSError."""
    assert size > 0, size
    assert size % HUGE_PAGE == offset % HUGE_PAGE == 0, f"{size = }, {offset = }"
    reserved = _mmap(None, size + HUGE_PAGE, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    address = -(-reserved // HUGE_PAGE) * HUGE_PAGE
    _mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, descriptor, offset)
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _libc.munmap, reserved, size + HUGE_PAGE)
    return memory


def protect(memory: Memory, size: int) -> None:
    """Let a write to the first `size` bytes, a multiple of a page, kill this process. Raises OSError."""
    if size and _libc.mprotect(ctypes.addressof(memory), size, mmap.PROT_READ):
        raise OSError(ctypes.get_errno(), "mprotect")


def collapse(address: int, size: int) -> bool:
    """Let all pages that overlap [address, address + size) become huge pages, which have memory from then on. Returns
    False for a page without; it works as before."""
    pages = [page * HUGE_PAGE for page in range(address // HUGE_PAGE, -(-(address + size) // HUGE_PAGE))]
    for page in pages:
        ctypes.string_at(page, 1)  # the kernel collapses no page without memory
    # Each call waits for all processors, however many pages it is for; one that fails may have left pages out.
    if _collapse(pages[0], len(pages)):
        return True
    done = [_collapse(page, 1) for page in pages]
    return all(done)


def _collapse(address: int, pages: int) -> bool:
    return bool(_libc.madvise(address, pages * HUGE_PAGE, _MADV_COLLAPSE) == 0)


def give_back(address: int, size: int, shared: bool) -> bool:
    """Fill memory with zeros, and give its whole pages back until they are written again. `shared`: it is of a memfd,
    for all processes that map it. Returns False, with the contents unknown, if the kernel refuses."""
    end = address + size
    first, last = min(-(-address // mmap.PAGESIZE) * mmap.PAGESIZE, end), end // mmap.PAGESIZE * mmap.PAGESIZE
    ctypes.memset(address, 0, first - address)
    if last <= first:
        ctypes.memset(first, 0, end - first)
        return True
    ctypes.memset(last, 0, end - last)
    return bool(_libc.madvise(first, last - first, _MADV_REMOVE if shared else _MADV_DONTNEED) == 0)


@functools.cache
def available() -> bool:
    """Whether shared memory gets huge pages here."""
    try:
        descriptor = os.memfd_create("orca-huge-page")
    except OSError:
        return False
    try:
        os.ftruncate(descriptor, HUGE_PAGE)
        memory = map_shared(descriptor, HUGE_PAGE)
        return collapse(ctypes.addressof(memory), HUGE_PAGE)
    except OSError:
        return False
    finally:
        os.close(descriptor)


class BlockPages:
    """Gives KV blocks huge pages as requests get the blocks.

    The kernel takes milliseconds for each page, so a thread asks for those of the blocks that are likely to be next.
    A block that is written sooner lies in small pages until then.
    """

    AHEAD = 128  # blocks

    def __init__(self, stores: Sequence[torch.Tensor]) -> None:
        """`stores` [blocks, ...] lie in shared memory. The pages of the first blocks are huge when this returns."""
        self._stores = stores
        self._places = [(store.data_ptr(), store[0].nbytes) for store in stores]
        self._last = len(stores[0]) - 1
        self._blocks: set[int] = set()
        self._pages: set[int] = set()
        for page in self._new_pages([0]):
            collapse(page * HUGE_PAGE, HUGE_PAGE)

    def back(self, blocks: Sequence[int]) -> Thread | None:
        """Requests get these blocks. Returns the thread that asks for more pages, if it has to."""
        new = [block for block in blocks if block not in self._blocks]
        pages = self._new_pages([*new, *(min(block + self.AHEAD, self._last) for block in new)])
        if not pages:
            return None
        thread = Thread(target=_collapse_each, args=(pages, self._stores), daemon=True)
        thread.start()
        return thread

    def forget(self) -> None:
        """The blocks have lost their pages."""
        self._blocks.clear()
        self._pages.clear()

    def _new_pages(self, blocks: Iterable[int]) -> list[int]:
        """The pages of these blocks in all stores, each once."""
        pages: list[int] = []
        for block in blocks:
            if block in self._blocks:
                continue
            self._blocks.add(block)
            for first, size in self._places:
                address = first + block * size
                for page in range(address // HUGE_PAGE, -(-(address + size) // HUGE_PAGE)):
                    if page not in self._pages:
                        self._pages.add(page)
                        pages.append(page)
        return pages


def _collapse_each(pages: Iterable[int], memory: object) -> None:
    """`memory` is only held: it stays mapped until this returns."""
    for page in pages:
        collapse(page * HUGE_PAGE, HUGE_PAGE)


def _mmap(*arguments: Any) -> int:
    address: int = _libc.mmap(*arguments)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    return address
