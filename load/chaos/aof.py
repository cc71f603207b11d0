"""The append-only file of a Redis or Valkey server, read as the transactions that changed its data.

The commands of a script are between MULTI and EXEC, or alone if there is only one. The tail of the file may be cut if
the server was killed; an incomplete transaction never happened, as for the server itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

MANIFEST = "appendonly.aof.manifest"


@dataclass(frozen=True, slots=True)
class Transaction:
    """Commands that took effect at once. `time` is the last time stamp (s) before them in the file, or 0."""

    number: int
    commands: list[list[bytes]]
    time: int = 0


def read_transactions(data_dir: Path) -> Iterator[Transaction]:
    """All transactions since the server was empty.

    Raises ValueError for a file that was rewritten, and so has lost its history.
    """
    return parse_transactions(_files(data_dir))


def parse_transactions(files: Iterable[Path]) -> Iterator[Transaction]:
    """The transactions in these files, one after the other. Raises ValueError for a binary snapshot."""
    number, time = 0, 0
    open_commands: list[list[bytes]] | None = None
    for path in files:
        for command in _commands(path):
            name = command[0].upper()
            if name == b"#TS":
                time = int(command[1])
            elif name == b"MULTI":
                open_commands = []
            elif name == b"EXEC" and open_commands is not None:
                number += 1
                yield Transaction(number, open_commands, time)
                open_commands = None
            elif open_commands is not None:
                open_commands.append(command)
            elif name != b"SELECT":
                number += 1
                yield Transaction(number, [command], time)


def _files(data_dir: Path) -> list[Path]:
    """The files of a server: from version 7 on those of a folder with a manifest, before that one file."""
    folder = data_dir / "appendonlydir"
    if not folder.is_dir():
        return [data_dir / "appendonly.aof"]
    files = []
    for line in (folder / MANIFEST).read_text().splitlines():
        words = line.split()
        described = dict(zip(words[::2], words[1::2], strict=False))
        if described["type"] == "b" and described["seq"] != "1":
            raise ValueError(f"{folder / described['file']}: the file was rewritten, its history is gone")
        if described["type"] == "i":
            files.append((int(described["seq"]), folder / described["file"]))
    return [path for _, path in sorted(files)]


def _commands(path: Path) -> Iterator[list[bytes]]:
    with path.open("rb") as file:
        if file.read(5) in (b"REDIS", b"VALKE"):
            raise ValueError(f"{path}: the file was rewritten, its history is gone")
        file.seek(0)
        while (command := _command(file)) is not None:
            yield command


def _command(file: IO[bytes]) -> list[bytes] | None:
    """The next command, or a time stamp as [#TS, seconds]; None at the end, or where the tail is cut."""
    line = file.readline()
    if not line.endswith(b"\r\n"):
        return None
    if line.startswith(b"#"):
        name, _, value = line[:-2].partition(b":")
        return [name, value]
    if not line.startswith(b"*"):
        raise ValueError(f"at byte {file.tell() - len(line)}: not a command: {line[:40]!r}")
    parts = []
    for _ in range(int(line[1:-2])):
        head = file.readline()
        if not head.endswith(b"\r\n"):
            return None
        size = int(head[1:-2])
        part = file.read(size + 2)
        if len(part) < size + 2:
            return None
        parts.append(part[:-2])
    return parts
