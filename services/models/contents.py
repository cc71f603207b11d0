"""Hashes of weights files, computed once as long as a file does not change."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from services.files import write_atomically
from services.limits import usable_cores

CHUNK = 32 << 20  # bytes; chunks are hashed separately, so that all cores work on a file
SETTLED = 2_000_000_000  # nanoseconds after which a write gets another time: clocks of file systems are coarse


def contents(file: Path, cache_dir: Path | None) -> str:
    """Return a hash of the bytes of `file`, at about 1 GB per second and core.

    The hash is kept in `cache_dir` and used while path, inode, size and times stay the same. None: it is not kept.
    """
    stat = file.stat()
    if cache_dir is None:
        return _hash(file, stat)
    stamp = repr((str(file.resolve()), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    kept = cache_dir / "models" / "contents" / hashlib.sha256(stamp.encode()).hexdigest()[:32]
    with contextlib.suppress(OSError, ValueError):
        digest = kept.read_text()
        if len(bytes.fromhex(digest)) == hashlib.sha256().digest_size:
            return digest
    digest = _hash(file, stat)
    if time.time_ns() - stat.st_ctime_ns > SETTLED:
        with contextlib.suppress(OSError):
            write_atomically(kept, digest.encode())
    return digest


def _hash(file: Path, stat: os.stat_result) -> str:
    """Return the hash of the hashes of the chunks."""
    if not stat.st_size:
        return hashlib.sha256().hexdigest()
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
        ThreadPoolExecutor(usable_cores()) as pool,
    ):

        def of(begin: int) -> bytes:
            with view[begin : begin + CHUNK] as chunk:
                return hashlib.sha256(chunk).digest()

        return hashlib.sha256(b"".join(pool.map(of, range(0, len(view), CHUNK)))).hexdigest()


class ContentsHash:
    """The hash of `contents` for a file that is written in pieces, its begin at last."""

    def __init__(self, begin: int) -> None:
        """`begin`: how many bytes are written at last."""
        self._first: list[memoryview] = []  # what follows them in their last chunk
        self._room = -begin % CHUNK  # bytes of the chunk that is being filled
        self._chunk: Any = None  # its hash; None: it is that first one
        self._digests: list[bytes] = []

    def update(self, data: memoryview) -> None:
        """Add what follows. `data` must stay as it is."""
        while len(data):
            if not self._room:
                self._end_chunk()
                self._chunk, self._room = hashlib.sha256(), CHUNK
            part, data = data[: self._room], data[self._room :]
            self._room -= len(part)
            if self._chunk is None:
                self._first.append(part)
            else:
                self._chunk.update(part)

    def digest(self, begin: bytes) -> str:
        self._end_chunk()
        first = b"".join((begin, *self._first))
        chunks = [hashlib.sha256(first[at : at + CHUNK]).digest() for at in range(0, len(first), CHUNK)]
        return hashlib.sha256(b"".join((*chunks, *self._digests))).hexdigest()

    def _end_chunk(self) -> None:
        if self._chunk is not None:
            self._digests.append(self._chunk.digest())
