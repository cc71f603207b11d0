"""The history of clients, as it came over the wire: a file with one JSON array per line, kind and fields of a record.

Also `Violation`, a broken rule of any history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType

import orjson

from services.client.sse import Event, StreamError, parse, position


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule. Tables count by `rule`, its short name; `what` tells where it was broken and with which values."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


@dataclass(frozen=True, slots=True)
class Submit:
    """The client's request number `request` was created, with this number of choices."""

    request: int
    time: float
    choices: int


@dataclass(frozen=True, slots=True)
class Connect:
    """A request was sent, for the first time or again. `last_id`: of the event after which to continue, or empty."""

    request: int
    time: float
    last_id: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """Token `index` of a choice arrived; the server's id of the request is `pool_id`."""

    request: int
    time: float
    pool_id: str
    choice: int
    index: int
    token: int


@dataclass(frozen=True, slots=True)
class End:
    """A choice ended after `index` tokens."""

    request: int
    time: float
    pool_id: str
    choice: int
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The client has finished the request: `[DONE]` came, or `error` tells what came instead."""

    request: int
    time: float
    error: str = ""


Record = Submit | Connect | Delivery | End | Done
_KINDS: dict[str, type[Record]] = {kind.__name__: kind for kind in (Submit, Connect, Delivery, End, Done)}


class Recorder:
    """Writes what clients see to a file, in the order of events; the end of `with` closes it."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._file = path.open("wb")
        self._clock = clock

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Write everything to the file and close it."""
        self._file.close()

    def submit(self, request: int, choices: int) -> None:
        self._write(Submit(request, self._clock(), choices))

    def connect(self, request: int, last_id: str) -> None:
        self._write(Connect(request, self._clock(), last_id))

    def event(self, request: int, event: Event) -> None:
        """Record the tokens and ends of an event, with the indices that follow from its id."""
        if not event.id:
            return
        now = self._clock()
        try:
            (pool_id, counts), chunk = position(event.id), parse(event.data)
        except StreamError:
            return  # it ends the client's request, which is recorded
        for part in chunk.get("choices", ()):
            choice, tokens, reason = part["index"], part.get("token_ids", ()), part.get("finish_reason")
            first = counts[choice] - len(tokens) - bool(reason)
            for index, token in enumerate(tokens, first):
                self._write(Delivery(request, now, pool_id, choice, index, token))
            if reason:
                self._write(End(request, now, pool_id, choice, counts[choice] - 1, reason))

    def done(self, request: int, error: str = "") -> None:
        self._write(Done(request, self._clock(), error))

    def _write(self, record: Record) -> None:
        self._file.write(orjson.dumps([type(record).__name__, *astuple(record)]) + b"\n")


def read(path: Path) -> Iterator[Record]:
    """The records that a Recorder wrote."""
    with path.open("rb") as file:
        for line in file:
            kind, *fields = orjson.loads(line)
            yield _KINDS[kind](*fields)
