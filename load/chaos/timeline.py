"""The history of a pool whose servers fail over, put together from the append-only files of all of them.

A replica that cannot continue where it was begins a new file with a snapshot of its master. What happened before is
then in the file of another server: scripts number themselves by the clock (`tick` in the pool's key `meta`), so the
snapshot tells after which transaction it was made. A server deletes its old files when a new one is whole. The
`Archive` links them before.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from load.chaos import pool_history
from load.chaos.aof import MANIFEST, Transaction, parse_transactions
from load.chaos.history import Violation

POLL = 0.02  # seconds between looks for new files
_META = re.compile(rb"orca:\{[^}]*\}:meta")
_OF_SEQUENCE = re.compile(rb"orca:\{[^}]*\}:(seq|tok):(.*)", re.DOTALL)


@dataclass(eq=False)
class Segment:
    """A snapshot and what one server did after it. `start` is the tick of the snapshot; 0 if it is empty."""

    base: list[Transaction]
    transactions: list[Transaction]

    @cached_property
    def start(self) -> int:
        return max((tick for one in self.base if (tick := tick_of(one))), default=0)

    @cached_property
    def ticks(self) -> dict[int, int]:
        """The place of each transaction that has a tick."""
        return {tick: place for place, one in enumerate(self.transactions) if (tick := tick_of(one))}


@dataclass(slots=True)
class Timeline:
    """What happened to the pool, as its last master has it. `lost`: the number of scripts that ran on an earlier master
    and were forgotten by a failover. `violations`: snapshots that differ from the history before them."""

    transactions: list[Transaction]
    lost: int
    violations: list[Violation]


class Archive:
    """Links the append-only files of servers of version 7 or later into `folder/archive`, from `with` to its end."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._manifests: dict[Path, list[str]] = {folder: [] for folder in folders}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Archive:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def segments(self, folder: Path) -> list[Segment]:
        """Return the segments of the file of one server, in order."""
        found: dict[str, list[str]] = {}  # names of the files after a snapshot, by its name
        for text in self._manifests[folder]:
            lines = [line.split() for line in text.splitlines()]
            files = [dict(zip(words[::2], words[1::2], strict=True)) for words in lines]
            (base,) = (file["file"] for file in files if file["type"] == "b")
            found[base] = [file["file"] for file in files if file["type"] == "i"]
        kept = folder / "archive"
        return [
            Segment(list(parse_transactions([kept / base])), list(parse_transactions(kept / name for name in names)))
            for base, names in found.items()
        ]

    def _watch(self) -> None:
        while not self._over.is_set():
            for folder in self._manifests:
                self._link(folder)
            self._over.wait(POLL)
        for folder in self._manifests:
            self._link(folder)

    def _link(self, folder: Path) -> None:
        files, kept = folder / "appendonlydir", folder / "archive"
        with contextlib.suppress(FileNotFoundError):
            text = (files / MANIFEST).read_text()
            if self._manifests[folder][-1:] != [text]:
                kept.mkdir(exist_ok=True)
                for name in re.findall(r"^file (\S+)", text, re.MULTILINE):
                    with contextlib.suppress(FileExistsError):
                        os.link(files / name, kept / name)
                self._manifests[folder].append(text)


def tick_of(transaction: Transaction) -> int:
    """The number that the script gave itself; 0 if it gave none."""
    for command in transaction.commands:
        if len(command) > 3 and _META.fullmatch(command[1]) and b"tick" in command[2::2]:
            return int(command[command.index(b"tick", 2) + 1])
    return 0


def put_together(segments: Sequence[Segment], last: Segment) -> Timeline:
    """The history that ends with `last`, the last one of the last master. Raises ValueError if a part is missing."""
    parts, snapshots, segment = [last.transactions], list[Segment](), last
    while end := segment.start:
        snapshots.insert(0, segment)
        found = [one for one in segments if end in one.ticks and one.start < end]
        if not found:
            raise ValueError(f"what happened before the snapshot of tick {end} is in no file")
        segment = found[0]
        parts.insert(0, segment.transactions[: segment.ticks[end] + 1])
    line: list[Transaction] = []
    wrong: list[Violation] = []
    for part, snapshot in zip(parts, [None, *snapshots], strict=True):
        if snapshot is not None:
            wrong += _differences(snapshot, line)
        line += [replace(one, number=number) for number, one in enumerate(part, len(line) + 1)]
    kept = {tick_of(one) for one in line}
    return Timeline(line, len({tick for one in segments for tick in one.ticks} - kept), wrong)


def _differences(segment: Segment, before: Sequence[Transaction]) -> Iterator[Violation]:
    """A snapshot holds the states and tokens to which the transactions before it lead."""
    history = pool_history.replay(before)
    for command in (command for one in segment.base for command in one.commands):
        if not (match := _OF_SEQUENCE.fullmatch(command[1])):
            continue
        id = match[2].decode()
        sequence = history.sequences.get(id, pool_history.Sequence(id))
        if match[1] == b"tok":
            same = command[2] == b"".join(token.to_bytes(4, "little") for token in sequence.tokens)
        else:
            fields = dict(zip(command[2::2], command[3::2], strict=True))
            same = b"state" not in fields or fields[b"state"].decode() == sequence.state
        if not same:
            yield Violation("snapshot", f"the {match[1].decode()} of {id} is not as the transactions before say")
