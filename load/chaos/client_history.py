"""Checks what clients saw: every index once and in order, one end for each choice, nothing open at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from load.chaos.history import Connect, Delivery, Done, End, Record, Submit, Violation
from services.client.sse import position


@dataclass(slots=True)
class ClientChoice:
    """A choice: the tokens delivered so far, without repetitions, and the index `due` that must come next."""

    tokens: list[int] = field(default_factory=list)
    due: int = 0
    ends: int = 0


@dataclass(slots=True)
class ClientRequest:
    """A request. `pool_id` is the last id that the server gave it; one that forgot the request gives it another."""

    choices: list[ClientChoice]
    submitted: float = 0.0  # Unix time, s
    pool_id: str = ""
    last_connect: str = ""
    done: bool = False
    error: str = ""
    times: list[float] = field(default_factory=list)  # of deliveries and ends


class ClientHistory:
    """The state of all requests: `apply` each record in order, then call `check_finished`."""

    def __init__(self) -> None:
        self.requests: dict[int, ClientRequest] = {}
        self.violations: list[Violation] = []

    def apply(self, record: Record) -> None:
        if isinstance(record, Submit):
            self.requests[record.request] = ClientRequest([ClientChoice() for _ in range(record.choices)], record.time)
            return
        request = self.requests[record.request]
        self._require(not request.done, "after the end", record.request, f"{record}")
        match record:
            case Connect():
                self._connect(request, record)
            case Delivery():
                self._deliver(request, record)
            case End():
                self._end(request, record)
            case Done():
                request.done, request.error = True, record.error

    def check_finished(self) -> None:
        for number, request in self.requests.items():
            self._require(request.done, "unfinished", number, "it never ended")
            ends = [choice.ends for choice in request.choices]
            whole = bool(request.error) or ends == [1] * len(ends)
            self._require(whole, "unfinished", number, f"[DONE] came, its choices ended {ends} times")

    def _connect(self, request: ClientRequest, record: Connect) -> None:
        counts = position(record.last_id)[1] if record.last_id else []
        for index, choice in enumerate(request.choices):
            choice.due = counts[index] if index < len(counts) else 0
        request.last_connect = record.last_id

    def _deliver(self, request: ClientRequest, record: Delivery) -> None:
        number, choice = record.request, self._at(request, record)
        if record.index < len(choice.tokens):  # repeated, because the client asked for it
            before = choice.tokens[record.index]
            what = f"choice {record.choice} token {record.index} was {before}, came again as {record.token}"
            self._require(before == record.token, "wrong", number, what)
        else:
            choice.tokens.append(record.token)
            what = f"choice {record.choice} token {record.index} came after its end"
            self._require(choice.ends == 0, "after the end", number, what)
            request.times.append(record.time)

    def _end(self, request: ClientRequest, record: End) -> None:
        choice = self._at(request, record)
        choice.ends += 1
        again = not request.last_connect  # the client asked for all of it, including the end
        self._require(choice.ends == 1 or again, "duplicated", record.request, f"choice {record.choice} ended again")
        choice.ends = 1
        request.times.append(record.time)

    def _at(self, request: ClientRequest, record: Delivery | End) -> ClientChoice:
        """The choice of a record, which must be at its index `due`; moves `due` past the record."""
        same = not request.pool_id or request.pool_id == record.pool_id or not request.last_connect
        self._require(same, "wrong", record.request, f"{request.pool_id} was gone on with as {record.pool_id}")
        request.pool_id = record.pool_id
        choice = request.choices[record.choice]
        rule = "duplicated" if record.index < choice.due else "lost"
        what = f"choice {record.choice}: index {record.index} came where {choice.due} was due"
        self._require(record.index == choice.due, rule, record.request, what)
        choice.due = record.index + 1
        return choice

    def _require(self, holds: bool, rule: str, request: int, what: str) -> None:
        if not holds:
            self.violations.append(Violation(rule, f"client's request {request}: {what}"))


def replay(records: Iterable[Record]) -> ClientHistory:
    history = ClientHistory()
    for record in records:
        history.apply(record)
    return history
