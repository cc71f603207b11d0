"""PortClaim: one `orca serve` has a port of a folder; other commands find the servers that run by these claims."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from actors.cluster.processes import processes_of
from cli.place import refusing
from services.errors import SettingsError
from services.pool.server.users import try_lock
from services.settings.addresses import in_url, is_every
from services.settings.settings import Settings


class PortClaim:
    """The file `serve-PORT` in the data folder, locked by the `orca serve` that has the port. Its first line names the
    folder of the cluster, which the next `orca serve` needs if this one is killed; its second line is the server's URL,
    by which other commands find it. Use it in a `with` statement, which raises SettingsError if another process has
    the port."""

    def __init__(self, settings: Settings) -> None:
        with refusing("data_dir", settings.data_dir):
            settings.data_dir.mkdir(parents=True, exist_ok=True)
        self._path = settings.data_dir / f"serve-{settings.port}"
        self._port, self._url = settings.port, own_url(settings)

    def __enter__(self) -> PortClaim:
        with refusing("data_dir", self._path.parent):
            self._file = self._path.open("a+")
        if not try_lock(self._file):
            self._file.close()
            raise SettingsError(f"port={self._port}: another orca serve on {self._path.parent} serves it")
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._file.close()

    @property
    def folder(self) -> Path | None:
        """The folder of the last cluster if nothing has ended that cluster, else None."""
        lines = _lines(self._path)
        return Path(lines[0]) if lines else None

    @folder.setter
    def folder(self, folder: Path | None) -> None:
        self._file.truncate(0)
        self._file.write(f"{folder}\n{self._url}\n" if folder else "")
        self._file.flush()


def own_url(settings: Settings) -> str:
    """The URL at which a server with these settings answers on its own machine."""
    host = "127.0.0.1" if is_every(settings.host) else in_url(settings.host)
    return f"http{'s' * bool(settings.ssl_certfile)}://{host}:{settings.port}"


def running_servers(data_dir: Path) -> dict[Path, str]:
    """The URLs of the servers on `data_dir` whose cluster has processes, also if their `orca serve` was killed, by the
    folder of the cluster's files."""
    claims = map(_lines, sorted(data_dir.glob("serve-*")))
    return {Path(lines[0]): lines[1] for lines in claims if len(lines) == 2 and processes_of(Path(lines[0]))}


def _lines(claim: Path) -> list[str]:
    return claim.read_text().splitlines() if claim.is_file() else []
