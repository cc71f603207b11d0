"""BatchJournal: the answers and files that one owner of a batch writes to disk.

All methods block: they are for threads, one call at a time.

Answers are entries in segments. Each owner appends to a segment of its own. An entry is a line: a checksum of the rest,
the number of the line in the input, 1 for the output file or 0 for the error file, and the JSON for that file. An entry
that a killed process or a power failure left incomplete has a wrong checksum and is ignored. An owner that has lost its
lease without knowing it does no harm: the next owner has another file, and of two entries for one line that of the
earlier owner counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import orjson

from gateway.batches.folder import BatchFolder, BatchRecord, Counts, Final, Progress
from gateway.batches.input_file import InputLines, check
from gateway.files import disk
from gateway.files.store import FileStore, StoredFile
from gateway.schemas.batches import EndStatus
from gateway.schemas.json_size import MOST_VALUES

_HEAD = 9  # bytes: the checksum and a space
UNANSWERED = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "The batch was cancelled before this request was executed."),
}


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """The answer to line `number`, counted from 0: an entry of the output file if `ok`, else of the error file."""

    number: int
    ok: bool
    entry: bytes  # JSON without a line break


class BatchJournal:
    """Opens the batch under `epoch`, which no other owner has. With `errors` of the input it has no `lines`."""

    def __init__(
        self,
        folder: BatchFolder,
        record: BatchRecord,
        store: FileStore,
        epoch: str,
        max_lines: int,
        max_values: int = MOST_VALUES,
    ) -> None:
        self._folder = folder
        self._store = store
        self.record = record
        self._segment = folder.segment(epoch)
        self._writer = SegmentWriter(self._segment)
        earlier = folder.progress()
        checked = check(folder.input, record.endpoint, max_lines, max_values)
        self.errors = checked.errors
        self.lines = InputLines(folder.input, checked)
        found = entry_locations(folder.segments())
        self.pending = [number for number in range(len(checked)) if number not in found]
        completed = sum(location.ok for location in found.values())
        self._counts = Counts(len(checked), completed, len(found) - completed)
        self._progress = Progress(earlier.in_progress_at if earlier else _now())
        self._saved: Progress | None = None

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        return [self.lines.read(number) for number in numbers]

    def append(self, answers: Sequence[LineAnswer]) -> None:
        """Durable when this returns."""
        self._writer.append(answers)
        ok = sum(answer.ok for answer in answers)
        counts = self._counts
        self._counts = Counts(counts.total, counts.completed + ok, counts.failed + len(answers) - ok)

    def save_progress(self) -> None:
        """Write the progress if it has changed."""
        progress = replace(self._progress, counts=self._counts)
        if progress != self._saved:
            self._folder.save_progress(progress)
            self._saved = progress

    def fail(self) -> None:
        """End the batch because of the errors of its input."""
        self._end(Final("failed", _now(), errors=self.errors))

    def finish(self, status: EndStatus) -> None:
        """Write the output and error files and end the batch. Lines without an answer get the error of the status.

        If another owner has ended the batch meanwhile, its files are kept and these are discarded.
        """
        self._progress = replace(self._progress, finalizing_at=_now())
        self.save_progress()
        segments = self._folder.segments()
        found = entry_locations(segments)
        good = [number for number in range(len(self.lines)) if number in found and found[number].ok]
        bad = [number for number in range(len(self.lines)) if number not in found or not found[number].ok]
        output = self._publish("output", good, found, segments, status) if good else None
        error = self._publish("error", bad, found, segments, status) if bad else None
        counts = Counts(len(self.lines), len(good), len(bad))
        self._end(Final(status, _now(), replace(self._progress, counts=counts), output, error))

    def _end(self, final: Final) -> None:
        segments = {self._segment, *self._folder.segments()}
        self._folder.end(final)
        written = self._folder.final()
        assert written is not None
        for segment in segments:  # discard the files of owners that died or were slower
            for kind in ("output", "error"):
                if (id := self._file_id(segment.name, kind)) not in (written.output_file_id, written.error_file_id):
                    self._store.discard(self.record.tenant, id)
        self._folder.tidy()

    def _publish(
        self,
        kind: str,
        numbers: Sequence[int],
        found: dict[int, EntryLocation],
        segments: Sequence[Path],
        status: EndStatus,
    ) -> str:
        """Write the entries of these lines, in the order of the input, to a file of the tenant. Returns its id."""
        id, now, tenant = self._file_id(self._segment.name, kind), _now(), self.record.tenant
        content = disk.temporary(self._store.folder(tenant) / f"{id}.data")
        try:
            with content.open("xb") as file:
                for line in self._entries(numbers, found, segments, status):
                    file.write(line + b"\n")
                file.flush()
                os.fsync(file.fileno())
            expires_at = now + self.record.output_life if self.record.output_life else None
            name = f"{self.record.id}_{kind}.jsonl"
            size = content.stat().st_size
            self._store.add(tenant, StoredFile(id, size, now, name, "batch_output", expires_at), content)
        finally:
            content.unlink(missing_ok=True)
        return id

    def _entries(
        self, numbers: Sequence[int], found: dict[int, EntryLocation], segments: Sequence[Path], status: EndStatus
    ) -> Iterator[bytes]:
        with contextlib.ExitStack() as stack:
            used = {location.segment for number in numbers if (location := found.get(number))}
            files = {index: stack.enter_context(segments[index].open("rb")) for index in used}
            for number in numbers:
                location = found.get(number)
                if location is None:
                    yield self._unanswered(number, status)
                else:
                    yield os.pread(files[location.segment].fileno(), location.length, location.start)

    def _unanswered(self, number: int, status: EndStatus) -> bytes:
        code, message = UNANSWERED[status]
        custom_id = orjson.loads(self.lines.read(number))["custom_id"]
        error = {"code": code, "message": message}
        entry = {"id": entry_id(self.record.id, number), "custom_id": custom_id, "response": None, "error": error}
        return orjson.dumps(entry)

    def _file_id(self, segment: str, kind: str) -> str:
        """A function of its arguments, so that the next owner finds the files of this one. It sorts by the batch's
        creation."""
        digest = hashlib.sha256(f"{self.record.id} {segment} {kind}".encode()).hexdigest()
        return f"file-{self.record.id.removeprefix('batch_')[:14]}{digest[:18]}"

    def close(self) -> None:
        """Close the files and remove a segment without answers: an owner that fails, say on a full disk, tries
        repeatedly."""
        self._writer.close()
        self.lines.close()
        with contextlib.suppress(FileNotFoundError):
            if not self._segment.stat().st_size:
                self._segment.unlink()


def entry_id(batch: str, number: int) -> str:
    """The id of a line's entry, a function of batch and number."""
    return "batch_req_" + hashlib.sha256(f"{batch} {number}".encode()).hexdigest()[:32]


def _now() -> int:
    return int(time.time())


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


@dataclass(frozen=True, slots=True)
class EntryLocation:
    """Where the entry of a line is: index of the segment, first byte, length in bytes."""

    segment: int
    start: int
    length: int
    ok: bool


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
