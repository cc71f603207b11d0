"""What is in a weights file: a hash, made once for a file that stays as it is."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.files import write_atomically

CHUNK = 32 << 20  # bytes, hashed by themselves, so that all cores work on a file
SETTLED = 2_000_000_000  # nanoseconds; the clock of a file system may not tell two later writes apart


def contents(file: Path, cache_dir: Path | None) -> str:
    """A hash of the bytes of `file`: about 1 GB a second and core.

    It is kept in `cache_dir` for as long as path, inode, size and times are the same; with None it is not kept.
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
    """Of the hashes of its chunks."""
    if not stat.st_size:
        return hashlib.sha256().hexdigest()
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
    ):

        def of(begin: int) -> bytes:
            with view[begin : begin + CHUNK] as chunk:
                return hashlib.sha256(chunk).digest()

        return hashlib.sha256(b"".join(pool.map(of, range(0, len(view), CHUNK)))).hexdigest()
