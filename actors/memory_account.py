"""MemoryAccount: how much of a machine's memory each engine of a cluster has, kept by the engine processes themselves.

Each process has a file in a folder of the machine, on which it holds a lock as long as it lives. The file says what the
engine has, or waits for. So the end of a process, whatever ends it, takes its entry with it: nothing has to be given
back for it. All processes of an engine that hold its memory, its ranks and the spares, have the same share, which
counts once, until the last of them has let it go. All that is read and written happens under the lock of the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

from actors.haproxy import MARK
from services.errors import ModelError
from services.limits import free_memory
from services.memory import FIRST, Memory, Share, Wish

FRESH = 6.0  # seconds for which a wish counts that is not repeated; engines repeat it every second or two
ROOM = 512  # bytes of each entry, which are taken at first: later, the disk may be full
GIB = 1 << 30
LOCK, BYTES = "lock", "bytes"  # files beside those of the processes


class MemoryAccount:
    """The account in `folder`, for a process of an engine of a model. `memory`: bytes of all engines; 0: what is free
    when the first one asks. `turn`: see Memory. Raises OSError if there cannot be one."""

    def __init__(
        self, folder: Path, engine: str, model: str, memory: int, turn: float, free: Callable[[], int] = free_memory
    ) -> None:
        self._folder, self._engine, self._model = folder, engine, model
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._locked():
            self._file = (folder / f"{engine}.{os.getpid()}").open("w+b", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._memory = Memory(memory or self._found(free), memory > 0, turn)
            self._write(None)
        self._wish: Wish | None = None
        self._asked = -inf
        self._used = -inf  # when the last iteration ended; infinite while one runs, and -inf before the first one
        self._first = 0.0  # until when that one may wait to begin; 0: `leaves` has not been asked yet

    @property
    def bytes(self) -> int:
        """What all engines may have together."""
        return self._memory.bytes

    def take(self, bytes: int) -> bool:
        """Take this much for the engine, unless it has a share. False if there is no room yet; the caller asks again
        soon, and is in the queue meanwhile. Raises ModelError if there will never be room."""
        self._check(bytes)
        now = time.monotonic()
        with self._locked():
            shares, wishes = self._read(now)
            if own := shares.get(self._engine):
                self._write(own)
                return True
            since = self._wish.since if self._wish and now < self._asked + FRESH else now
            self._asked, wish = now, Wish(self._engine, self._model, bytes, since)
            others = [each for each in wishes if each.engine != self._engine]
            first = self._memory.first([wish, *others], shares.values())
            if first is wish and self._memory.fits(wish, shares.values()):
                self._wish = None
                self._write(Share(self._engine, self._model, bytes))
                return True
            self._wish = wish
            self._write(wish)
            return False

    def settle(self, bytes: int) -> bool:
        """Correct the share to what loading has shown. False, and no share is left, if there is no room for it yet.
        Raises ModelError if there will never be."""
        self._check(bytes)
        with self._locked():
            shares, _ = self._read(time.monotonic())
            own = shares.get(self._engine)
            share = replace(own, bytes=bytes) if own else Share(self._engine, self._model, bytes)
            fits = self._memory.fits(share, shares.values())
            self._write(share if fits else None)
            return fits

    def join(self) -> bool:
        """Have the share of the engine, too: this process holds its memory. False if the engine has none."""
        with self._locked():
            if share := self._read(time.monotonic())[0].get(self._engine):
                self._write(share)
            return share is not None

    def release(self) -> None:
        """Have no share and no wish: this process holds no memory of the engine."""
        self._used, self._first = -inf, 0.0
        with self._locked():
            self._write(None)

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Within, the engine runs an iteration."""
        self._used = inf
        try:
            yield
        finally:
            self._used = time.monotonic()

    def leaves(self) -> bool:
        """Whether the engine has to give back its weights; False if this process has no share. Its turn begins with the
        first call."""
        now = time.monotonic()
        used = min(self._used, now)
        if used == -inf:
            used = self._first = self._first or now + FIRST
        with self._locked():
            shares, wishes = self._read(now)
            if not isinstance(self._entry, Share) or not (own := shares.get(self._engine)):
                return False
            since = min(own.since, now)
            own = replace(own, since=since, used=used)
            self._write(own)
            return self._engine in self._memory.leaving(wishes, [*(shares | {self._engine: own}).values()], now)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _check(self, bytes: int) -> None:
        if self._memory.given and bytes > self._memory.bytes:
            raise ModelError(
                f"memory={self._memory.bytes / GIB:.2f} GiB: the engine takes {bytes / GIB:.2f} GiB alone; raise "
                "memory, or use a smaller model, weights=int8 or fewer kv_blocks"
            )

    def _found(self, free: Callable[[], int]) -> int:
        """What the machine had when the first engine asked. All count with the same number."""
        file = self._folder / BYTES
        if not file.exists() or not file.read_text():
            file.write_text(str(free()))
        return int(file.read_text())

    def _read(self, now: float) -> tuple[dict[str, Share], list[Wish]]:
        """The shares by engine, and the wishes, of the processes that live."""
        shares: dict[str, Share] = {}
        wishes: list[Wish] = []
        for path in self._folder.iterdir():
            if path.name in (LOCK, BYTES):
                continue
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    data = file.read()
                else:  # its process is dead
                    path.unlink()
                    continue
            if not data.strip():
                continue
            kind, asked, fields = json.loads(data)
            if kind == Wish.__name__:
                wishes += [Wish(*fields)] if now < asked + FRESH else []
                continue
            share = Share(*fields)
            other = shares.get(share.engine, share)
            shares[share.engine] = replace(
                share,
                bytes=max(share.bytes, other.bytes),
                since=min(share.since, other.since),
                used=_later(share.used, other.used),
            )
        return shares, [wish for wish in wishes if wish.engine not in shares]

    def _write(self, entry: Share | Wish | None) -> None:
        self._entry = entry
        fields = [getattr(entry, name) for name in entry.__slots__] if entry else []
        data = json.dumps([type(entry).__name__, time.monotonic(), fields]).encode() if entry else b""
        assert len(data) <= ROOM, data
        os.pwrite(self._file.fileno(), data.ljust(ROOM), 0)


def _later(one: float, other: float) -> float:
    """The later time of use that two processes know; one that has joined while the engine loaded knows none."""
    return max(one, other) if inf not in (one, other) else min(one, other)


def account_folder(node: str) -> Path:
    """The folder of the account of this cluster on the Ray node with this id: with the files of the cluster that `orca
    serve` has made, else of its own."""
    if MARK in os.environ:
        return Path(os.environ[MARK]).parent / "memory"
    return Path(tempfile.gettempdir()) / f"orca-memory-{node}"
