"""EngineRecord: the file of an engine process, from which `orca serve` learns while it starts why the process has died.

The file is in the folder of the cluster that `orca serve` has made; clusters of others have none. The process holds a
lock on it as long as it lives. The first line, if there is one, is the reason of its end: a process writes its own
exception, and a scheduler that kills a process writes why. On a full disk the reason is missing, and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from actors.haproxy import MARK
from services.errors import ModelError, NoRoom, StaleEpoch

LONGEST = 500  # characters of an exception's text


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an engine process ends, or has ended."""

    text: str
    refused: bool = False  # it refuses the model, which another process would do too


class EngineRecord:
    """The record of this process, whose actor is called `name`."""

    def __init__(self, name: str) -> None:
        self._file: Path | None = None
        if folder := _own_records():
            with contextlib.suppress(OSError):
                folder.mkdir(exist_ok=True)
                new = folder / f".{os.getpid()}"
                self._locked = new.open("wb")
                fcntl.flock(self._locked, fcntl.LOCK_EX)
                self._file = new.rename(folder / f"{name}.{os.getpid()}")

    @contextlib.contextmanager
    def noting(self, refuses: bool = False) -> Iterator[None]:
        """Write down the exception that is raised within, and raise it again, except those after which the process
        goes on to wait for an owner or for memory. `refuses`: each refuses the model."""
        try:
            yield
        except (StaleEpoch, NoRoom):
            raise
        except Exception as error:
            refused = isinstance(error, ModelError)
            if self._file:
                _append(self._file, Reason(str(error) if refused else described(error), refused or refuses))
            raise


def records_in(folder: Path) -> Path:
    """The folder of the records of the cluster with its files in `folder`."""
    return folder / "engines"


def _own_records() -> Path | None:
    """The folder of the records of the cluster of this process."""
    return records_in(Path(os.environ[MARK]).parent) if MARK in os.environ else None


def described(error: BaseException) -> str:
    """The type and the text of an exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:LONGEST]}" if text else type(error).__name__


def note(pids: Collection[int], text: str) -> None:
    """Write down why these engine processes are about to be killed, unless they have said more themselves."""
    if folder := _own_records():
        for file in [file for pid in pids for file in folder.glob(f"*.{pid}")]:
            _append(file, Reason(text))


def forget(actors: str) -> None:
    """Remove the records of all processes of the actors whose names begin so: they end since nobody needs them."""
    if folder := _own_records():
        for file in folder.glob(f"{actors}*.*"):
            file.unlink(missing_ok=True)


def reason_in(record: Path) -> Reason | None:
    """What a record says; None if it says nothing yet."""
    first, end, _ = record.read_text().partition("\n")
    return Reason(**json.loads(first)) if end else None


def _append(record: Path, reason: Reason) -> None:
    with contextlib.suppress(OSError), record.open("ab") as file:
        file.write(json.dumps(asdict(reason)).encode() + b"\n")
