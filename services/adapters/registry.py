"""The registry of adapters: which names requests can give as their model, as the pool keeps it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from filelock import FileLock

from services import wire
from services.files import write_atomically


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter under its name. `digest`: see `store.draft_of`; `path`: where that was read; `since`: Unix seconds."""

    name: str
    digest: str
    path: str
    since: float
    tenants: tuple[str, ...] = ()  # who can name it; empty: everybody

    def seen_by(self, tenant: str) -> bool:
        return not self.tenants or tenant in self.tenants


@dataclass(frozen=True, slots=True)
class Registry:
    """All adapters by name. Of two registries, the one with the greater `version` is the later. `configured`: what the
    configuration that was read last says of each of its adapters. `unnamed`: digests that no name has, but whose files
    are there or are about to be, with the Unix seconds since then."""

    version: int = 0
    adapters: dict[str, Adapter] = field(default_factory=dict)
    configured: dict[str, str] = field(default_factory=dict)
    unnamed: dict[str, float] = field(default_factory=dict)

    def naming(self, adapters: dict[str, Adapter]) -> Registry:
        """The registry with these adapters in place of its own."""
        now, named = time.time(), {each.digest for each in adapters.values()}
        unnamed = self.unnamed | {each.digest: now for each in self.adapters.values()}
        kept = {digest: since for digest, since in unnamed.items() if digest not in named}
        return replace(self, adapters=adapters, unnamed=kept)

    def with_files(self, digest: str) -> Registry:
        """The registry that knows of files of this digest, which may get a name."""
        if any(each.digest == digest for each in self.adapters.values()):
            return self
        return replace(self, unnamed=self.unnamed | {digest: time.time()})

    def keep(self, file: Path) -> None:
        """Keep it in a file, durably, unless a later one is there. Raises OSError."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            if self.version > Registry.kept(file).version:
                write_atomically(file, self.pack())

    @classmethod
    def kept(cls, file: Path) -> Registry:
        """The one in a file; an empty one if there is none. Raises OSError."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return cls.unpack(file.read_bytes())
        return cls()

    def pack(self) -> bytes:
        return wire.pack(self)

    @classmethod
    def unpack(cls, data: bytes) -> Registry:
        """Raises Unreadable."""
        return wire.unpack(cls, data) if data else cls()
