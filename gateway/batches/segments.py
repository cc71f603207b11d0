"""Segments: the answers of a batch's owners. Each owner appends to a file of its own.

An entry is a line: a checksum of the rest, the number of the line in the input, 1 for the output file or 0 for the
error file, and the JSON for that file. An entry that a killed process or a power failure left incomplete has a wrong
checksum and is ignored. An owner that has lost its lease without knowing it does no harm: the next owner has another
file, and of two entries for one line that of the earlier owner counts.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_HEAD = 9  # bytes: the checksum and a space


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """The answer to line `number`, counted from 0: an entry of the output file if `ok`, else of the error file."""

    number: int
    ok: bool
    entry: bytes  # JSON without a line break


@dataclass(frozen=True, slots=True)
class EntryLocation:
    """Where the entry of a line is: index of the segment, first byte, length in bytes."""

    segment: int
    start: int
    length: int
    ok: bool


class SegmentWriter:
    """Appends answers to a new segment file of a batch, each durable when `append` returns."""

    def __init__(self, path: Path) -> None:
        """Create the file at `path`. Raises FileExistsError."""
        self._file: BinaryIO = path.open("xb", buffering=0)

    def append(self, answers: Iterable[LineAnswer]) -> None:
        """Append the answers, and sync the file."""
        data = memoryview(b"".join(map(_packed, answers)))
        while data:
            data = data[self._file.write(data) :]
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def entry_locations(segments: Iterable[Path]) -> dict[int, EntryLocation]:
    """The location of the valid entry of each answered line."""
    found: dict[int, EntryLocation] = {}
    for index, segment in enumerate(segments):
        for number, location in _entries(index, segment):
            found.setdefault(number, location)
    return found


def _entries(index: int, segment: Path) -> Iterator[tuple[int, EntryLocation]]:
    start = 0
    with segment.open("rb") as file:
        for line in file:
            rest = line[_HEAD:-1]
            if line.endswith(b"\n") and line[:_HEAD] == _checksum(rest):
                number, ok, _ = rest.split(b" ", 2)
                head = _HEAD + len(number) + len(ok) + 2
                yield int(number), EntryLocation(index, start + head, len(line) - head - 1, ok == b"1")
            start += len(line)


def _packed(answer: LineAnswer) -> bytes:
    rest = b"%d %d %b" % (answer.number, answer.ok, answer.entry)
    return _checksum(rest) + rest + b"\n"


def _checksum(data: bytes) -> bytes:
    return b"%08x " % zlib.crc32(data)
