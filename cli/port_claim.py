"""PortClaim: which `orca serve` has a port, and where its cluster's files are, for the next one if it is killed."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from services.errors import SettingsError
from services.pool.server.users import try_lock


class PortClaim:
    """The file `serve-PORT` in `data_dir`, locked while a process has the claim. Enter it by `with`."""

    def __init__(self, data_dir: Path, port: int) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self._path, self._port = data_dir / f"serve-{port}", port

    def __enter__(self) -> PortClaim:
        self._file = self._path.open("a+")
        if not try_lock(self._file):
            self._file.close()
            raise SettingsError(f"port={self._port}: another orca serve on {self._path.parent} serves it")
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._file.close()

    @property
    def folder(self) -> Path | None:
        """The folder of the cluster that was started last, if nobody ended it."""
        self._file.seek(0)
        name = self._file.read()
        return Path(name) if name else None

    @folder.setter
    def folder(self, folder: Path | None) -> None:
        self._file.truncate(0)
        self._file.write(str(folder) if folder else "")
        self._file.flush()
