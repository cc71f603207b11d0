"""Segments: what owners of a batch have answered, each in a file of its own, which it alone appends to.

An entry is a line: a checksum of the rest, the number of the line in the input, 1 for the output file or 0 for the
error file, and the JSON that goes there. What a process that was killed, or a machine that lost power, left unfinished
has no right checksum and does not count. An owner that lost its lease and does not know it can do no harm: the next one
has another file, and of two entries for one line the earlier owner's counts.
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
class Answered:
    """What becomes of line `number`, which counts from 0: an entry of the output file, or of the error file."""

    number: int
    ok: bool
    entry: bytes  # JSON without a line break


@dataclass(frozen=True, slots=True)
class Place:
    """Where the entry of a line is: which segment, from where, how many bytes."""

    segment: int
    start: int
    length: int
    ok: bool


class SegmentWriter:
    """Creates the segment at `path`, where there must be none."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("xb", buffering=0)

    def append(self, answers: Iterable[Answered]) -> None:
        """Durable when this returns."""
        data = memoryview(b"".join(map(_packed, answers)))
        while data:
            data = data[self._file.write(data) :]
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def places(segments: Iterable[Path]) -> dict[int, Place]:
    """The entry that counts of each line that has one."""
    found: dict[int, Place] = {}
    for index, segment in enumerate(segments):
        for number, place in _entries(index, segment):
            found.setdefault(number, place)
    return found


def _entries(index: int, segment: Path) -> Iterator[tuple[int, Place]]:
    start = 0
    with segment.open("rb") as file:
        for line in file:
            rest = line[_HEAD:-1]
            if line.endswith(b"\n") and line[:_HEAD] == _checksum(rest):
                number, ok, _ = rest.split(b" ", 2)
                head = _HEAD + len(number) + len(ok) + 2
                yield int(number), Place(index, start + head, len(line) - head - 1, ok == b"1")
            start += len(line)


def _packed(answer: Answered) -> bytes:
    rest = b"%d %d %b" % (answer.number, answer.ok, answer.entry)
    return _checksum(rest) + rest + b"\n"


def _checksum(data: bytes) -> bytes:
    return b"%08x " % zlib.crc32(data)
