"""Place: the folders of one `orca serve`, which no other server uses: its pool's, and that of its files and batches."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.errors import UsageError
from services.pool.address import without_password
from services.pool.server.users import in_use
from services.settings.settings import Settings

OWNER = "owner"  # a symbolic link, which is created with its content or not at all
FILES = "files"


@dataclass(frozen=True, slots=True)
class Place:
    """`pool` is the folder of the pool's server, None with `redis_url`; `files` that of files and batches."""

    pool: Path | None
    files: Path

    @classmethod
    def take(cls, settings: Settings) -> Place:
        """The folders of the server with these settings. Without `redis_url` they belong to its port, with it to the
        pool of that name.

        Raises UsageError for a folder that cannot be made or written.
        """
        owner = f"pool-{settings.pool}" if settings.redis_url else f"port-{settings.port}"
        with refusing("data_dir", settings.data_dir):
            pool = None if settings.redis_url else own_folder(settings.data_dir, owner)
        shared = Path(settings.files_dir) if settings.files_dir else (pool or settings.data_dir) / FILES
        with refusing("files_dir", shared):
            files = own_folder(shared, owner)
            with tempfile.TemporaryFile(dir=files) as probe:
                probe.write(bytes(4096))
        return cls(pool, files)

    def describe(self, settings: Settings) -> str:
        if self.pool is not None:
            return f"pool of port {settings.port}: {self.pool}; files and batches: {self.files}"
        urls = ", ".join(without_password(shard.url) for shard in settings.shards)
        return f"pool {settings.pool!r} at {urls}; files and batches: {self.files}"


def own_folder(root: Path, owner: str) -> Path:
    """`root` if it belongs to `owner`, or if nobody has it or uses it yet: what an earlier version left there goes to
    the first server. Otherwise the folder `owner` in it. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True)
    if not in_use(root):
        with contextlib.suppress(FileExistsError):
            (root / OWNER).symlink_to(owner)
    if owner_of(root) == owner:
        return root
    (root / owner).mkdir(exist_ok=True)
    return root / owner


def owner_of(root: Path) -> str:
    """Who has `root` itself; empty if nobody has."""
    try:
        return os.readlink(root / OWNER)
    except FileNotFoundError:
        return ""


@contextlib.contextmanager
def refusing(setting: str, folder: Path) -> Iterator[None]:
    """Raise UsageError in place of an OSError that is raised within."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{setting}={str(folder)!r}: {error.strerror}; name a folder that can be written") from None
