"""Replays what a pool did from its server's file, and checks every rule.

It knows the keys from the documentation in `services/pool/lua/README.md`, and shares no code with the pool, so that it
does not repeat an error of the pool.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgpack

from load.chaos.aof import Transaction
from load.chaos.history import Violation

_KEY = re.compile(r"orca:\{[^}]*\}:(\w+):?(.*)", re.DOTALL)
FAR = 2**40  # more tokens are stored of a sequence that needs a feature
_LEGAL = {("", "waiting"), ("waiting", "running"), ("running", "waiting"), ("waiting", "ended"), ("running", "ended")}


@dataclass(slots=True)
class Sequence:
    """A sequence; it is kept when the pool forgets it."""

    id: str
    group: str = ""
    state: str = ""
    seat: str = ""
    epoch: str = ""  # the seat's when it claimed the sequence
    most_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    forgotten: bool = False


@dataclass(slots=True)
class Seat:
    epoch: str = ""
    call: int = 0
    running: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Takeover:
    """A seat that was taken at `time` (Unix, s) from an owner with the process id `pid` before its lease ended, because
    the owner was reported dead."""

    seat: str
    epoch: str
    pid: int
    time: float


@dataclass(slots=True)
class _Lease:
    owner: str = ""
    length: float = 0.0  # us
    until: float = 0.0  # us, Unix
    released: str = ""  # the epoch in which its owner gave it back
    dead: str = ""  # the epoch whose owner was reported dead


@dataclass(slots=True)
class Leases:
    """The leases of a pool's seats: which owner may lose its seat, and when. `now` (us, Unix) is the time of the last
    script; the caller sets it before it reports the script's commands."""

    now: float = 0.0
    takeovers: list[Takeover] = field(default_factory=list)
    _seats: dict[str, _Lease] = field(default_factory=dict)

    def update(self, seat: str, fields: Mapping[str, bytes]) -> None:
        """A script wrote these fields of a seat."""
        lease = self._seats.setdefault(seat, _Lease())
        if "epoch" in fields:
            lease.owner, lease.length, lease.until = fields["owner"].decode(), float(fields["lease"]), 0.0
        lease.released = fields.get("released", lease.released.encode()).decode()
        lease.dead = fields.get("dead", lease.dead.encode()).decode()

    def renew(self, seat: str, until: float) -> str:
        """The lease of a seat runs to `until`. Returns what is wrong with that; empty if nothing is."""
        lease = self._seats.setdefault(seat, _Lease())
        lease.until = until
        # a double of 16 digits is off by some tenths of a microsecond
        return "" if abs(until - self.now - lease.length) <= 1 else f"{seat}: a lease to {until} at {self.now}"

    def vacate(self, seat: str, epoch: str) -> str:
        """A seat lost the owner with this epoch. Returns what is wrong with that; empty if the owner gave it back, its
        lease had ended, or the owner was reported dead, which is recorded in `takeovers`."""
        lease = self._seats.setdefault(seat, _Lease())
        if lease.released == epoch or lease.until <= self.now:
            return ""
        if lease.dead == epoch:
            self.takeovers.append(Takeover(seat, epoch, _pid(lease.owner), self.now / 1e6))
            return ""
        left = (lease.until - self.now) / 1e6
        return f"{seat} was taken from {epoch!r}, whose lease had {left:.1f} s left and which was not given back"


@dataclass(slots=True)
class _Now:
    """The transaction that is currently replayed."""

    number: int
    actor: str  # the seat whose exchange it is
    created: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    published: list[bytes] = field(default_factory=list)


class PoolHistory:
    """The state of one pool: `apply` each transaction in order. `violations` are in the order of their discovery."""

    def __init__(self) -> None:
        self.sequences: dict[str, Sequence] = {}
        self.seats: dict[str, Seat] = {}
        self.violations: list[Violation] = []
        self._waiting: set[str] = set()
        self._open: dict[str, int] = {}  # sequences of each group that have not ended, as the pool counts them
        self._unended: dict[str, int] = {}  # the same, as they are counted here
        self._epochs: set[str] = set()
        self.leases = Leases()
        self._numerics = ""  # of the engines
        self._now = _Now(0, "")
        self._handlers: dict[str, Callable[[str, str, list[bytes]], None]] = {
            "seq": self._on_sequence,
            "tok": self._on_tokens,
            "seat": self._on_seat,
            "running": self._on_running,
            "waiting": self._on_waiting,
            "group": self._on_group,
            "events": self._on_events,
            "leases": self._on_leases,
        }

    def apply(self, transaction: Transaction) -> None:
        commands = [parsed for command in transaction.commands for parsed in _by_key(command)]
        self._now = _Now(transaction.number, _actor(commands))
        self.leases.now = _stamp(commands) or self.leases.now
        for kind, name, command in commands:
            if handler := self._handlers.get(kind):
                handler(command[0].decode().upper(), name, command[2:])
        self._check_end()

    def check_finished(self) -> None:
        """To be called when all sequences should have ended."""
        for sequence in self.sequences.values():
            self._require(sequence.state == "ended", "unfinished", f"{sequence.id} is {sequence.state} at the end")

    def _require(self, holds: bool, rule: str, what: str) -> None:
        if not holds:
            self.violations.append(Violation(rule, f"transaction {self._now.number}: {what}"))

    # --- sequences ---

    def _on_sequence(self, command: str, id: str, args: list[bytes]) -> None:
        sequence = self.sequences.setdefault(id, Sequence(id))
        self._now.touched.add(id)
        if command == "DEL":
            self._require(sequence.state == "ended", "forgotten early", f"{id} was forgotten while {sequence.state}")
            sequence.forgotten = True
        elif command == "HDEL" and b"seat" in args:
            sequence.seat = ""
        elif command in ("HSET", "HMSET"):
            fields = _fields(args)
            if "tokens_max" in fields:
                sequence.most_tokens = int(fields["tokens_max"]) % FAR - int(fields["prompt_len"])
                sequence.group = fields["group"].decode()
            if "state" in fields:
                self._change(sequence, fields["state"].decode(), fields.get("seat", b"").decode())

    def _change(self, sequence: Sequence, state: str, seat: str) -> None:
        before, sequence.state = sequence.state, state
        legal = (before, state) in _LEGAL and not sequence.forgotten
        rule = "ended twice" if before == state == "ended" else "state"
        self._require(legal, rule, f"{sequence.id} was {before or 'unknown'} and became {state}")
        if not before:
            self._now.created.add(sequence.id)
            self._unended[sequence.group] = self._unended.get(sequence.group, 0) + 1
        if state == "running":
            sequence.seat, sequence.epoch = seat, self._seat(seat).epoch
            allowed = self._now.actor == seat and sequence.epoch != ""
            self._require(allowed, "claim", f"{sequence.id} was given to {seat} outside an exchange of its owner")
        if state == "ended":
            self._unended[sequence.group] -= 1

    def _on_tokens(self, command: str, id: str, args: list[bytes]) -> None:
        sequence = self.sequences.setdefault(id, Sequence(id))
        if command == "APPEND":
            self._append(sequence, args[0])
        elif command == "SET" and id in self._now.created and not sequence.tokens:
            sequence.tokens = _tokens(args[0])
        elif command != "DEL":
            self._require(False, "changed", f"{command} of the tokens of {id}: committed tokens never change")

    def _append(self, sequence: Sequence, packed: bytes) -> None:
        tokens, seat, actor = _tokens(packed), self._seat(sequence.seat), self._now.actor
        what = f"{len(tokens)} tokens of {sequence.id} ({sequence.state} on {sequence.seat or 'no seat'})"
        self._require(sequence.state == "running", "fence", f"{what} were committed though it does not run")
        self._require(actor == sequence.seat != "", "fence", f"{what} were committed by {actor or 'no seat'}")
        same = seat.epoch == sequence.epoch != ""
        self._require(same, "fence", f"{what}: epoch {seat.epoch!r} commits what {sequence.epoch!r} claimed")
        sequence.tokens += tokens
        self._require(len(packed) % 4 == 0, "tokens", f"{what}: {len(packed)} bytes")
        fits = len(sequence.tokens) <= sequence.most_tokens
        self._require(fits, "tokens", f"{what}: now {len(sequence.tokens)} of {sequence.most_tokens}")

    def _on_group(self, command: str, request: str, args: list[bytes]) -> None:
        if command == "HINCRBY" and args[0] == b"open":
            self._open[request] = self._open.get(request, 0) + int(args[1])
        elif command in ("HSET", "HMSET") and "open" in (fields := _fields(args)):
            self._open[request] = int(fields["open"])

    def _on_waiting(self, command: str, _: str, args: list[bytes]) -> None:
        ids = {id.decode() for id in (args[1::2] if command == "ZADD" else args)}
        self._now.touched |= ids
        if command == "ZADD":
            self._waiting |= ids
        elif command == "ZREM":
            self._waiting -= ids

    # --- seats ---

    def _seat(self, name: str) -> Seat:
        return self.seats.setdefault(name, Seat())

    def _on_seat(self, command: str, name: str, args: list[bytes]) -> None:
        seat = self._seat(name)
        if command == "DEL" or (command == "HDEL" and b"epoch" in args):
            if seat.epoch and (why := self.leases.vacate(name, seat.epoch)):
                self._require(False, "takeover", why)
            seat.epoch, seat.call = "", 0
            self._now.touched |= seat.running
        elif command in ("HSET", "HMSET"):
            fields = _fields(args)
            self.leases.update(name, fields)
            if "figures" in fields:
                self._on_figures(name, seat, fields["figures"])
            if "epoch" in fields:
                self._give(name, seat, fields["epoch"].decode())
            elif "call" in fields:
                call = int(fields["call"])
                self._require(seat.epoch != "", "fence", f"{name} exchanged without an owner")
                self._require(call > seat.call, "fence", f"{name} made exchange {call} after {seat.call} in one epoch")
                seat.call = call

    def _on_figures(self, name: str, seat: Seat, packed: bytes) -> None:
        """All engines compute the same bits."""
        numerics = msgpack.unpackb(packed)[5]
        self._numerics = self._numerics or numerics
        same = numerics == self._numerics
        self._require(same, "numerics", f"{name} under {seat.epoch!r} has {numerics!r}, others {self._numerics!r}")

    def _give(self, name: str, seat: Seat, epoch: str) -> None:
        self._require(seat.epoch == "", "fence", f"{name} was given to {epoch!r} while {seat.epoch!r} held it")
        self._require(epoch not in self._epochs, "fence", f"{name} was given under {epoch!r}, which was used before")
        self._epochs.add(epoch)
        seat.epoch, seat.call = epoch, 0

    def _on_leases(self, command: str, _: str, args: list[bytes]) -> None:
        if command == "ZADD" and (why := self.leases.renew(args[1].decode(), float(args[0]))):
            self._require(False, "takeover", why)

    def _on_running(self, command: str, name: str, args: list[bytes]) -> None:
        seat = self._seat(name)
        ids = seat.running if command == "DEL" else {id.decode() for id in args}
        self._now.touched |= ids
        seat.running = seat.running | ids if command == "SADD" else seat.running - ids

    # --- events ---

    def _on_events(self, command: str, _: str, args: list[bytes]) -> None:
        if command == "XADD" and len(args) >= 3 and args[-2] == b"e":
            self._now.published.append(args[-1])

    def _check_published(self, entry: bytes) -> None:
        ids, indices, counts, packed, _ = msgpack.unpackb(entry, raw=True)
        tokens, first = _tokens(packed), 0
        for raw_id, index, count in zip(ids, indices, counts, strict=True):
            id = raw_id.decode()
            published, first = tokens[first : first + count], first + count
            committed = self.sequences.get(id, Sequence(id)).tokens[index : index + count]
            what = f"{id} {index}: published {published}, committed {committed}"
            self._require(published == committed, "published", what)

    # --- at the end of each transaction ---

    def _check_end(self) -> None:
        for entry in self._now.published:
            self._check_published(entry)
        for id in self._now.touched:
            self._check_place(self.sequences.setdefault(id, Sequence(id)))

    def _check_place(self, sequence: Sequence) -> None:
        id, state = sequence.id, sequence.state
        holders = sorted(name for name, seat in self.seats.items() if id in seat.running)
        due = [sequence.seat] if state == "running" else []
        self._require(holders == due, "place", f"{id} is {state or 'unknown'} and runs on {holders}, not {due}")
        waits = id in self._waiting
        self._require(waits == (state == "waiting"), "place", f"{id} is {state or 'unknown'}, in the queue: {waits}")
        if state == "running":
            epoch = self._seat(sequence.seat).epoch
            self._require(
                epoch == sequence.epoch, "place", f"{id} runs under {sequence.epoch!r}, its seat is {epoch!r}"
            )
        counted, open_ = self._unended.get(sequence.group, 0), self._open.get(sequence.group, 0)
        self._require(
            counted == open_, "place", f"{open_} of group {sequence.group} are open, {counted} have not ended"
        )


def replay(transactions: Iterable[Transaction]) -> PoolHistory:
    history = PoolHistory()
    for transaction in transactions:
        history.apply(transaction)
    return history


def _by_key(command: list[bytes]) -> list[tuple[str, str, list[bytes]]]:
    """Kind and name of the key, with the command; a DEL of several keys is split into one for each."""
    keys = command[1:] if command[0].upper() in (b"DEL", b"UNLINK") else command[1:2]
    found = []
    for key in keys:
        if match := _KEY.fullmatch(key.decode(errors="replace")):
            name = b"DEL" if command[0].upper() == b"UNLINK" else command[0]
            found.append((match[1], match[2], [name, key, *command[2:]]))
    return found


def _actor(commands: list[tuple[str, str, list[bytes]]]) -> str:
    """The seat whose exchange this is, or empty: only an exchange writes a call number without an epoch."""
    for kind, name, command in commands:
        if kind == "seat" and command[0].upper() in (b"HSET", b"HMSET"):
            fields = _fields(command[2:])
            if "call" in fields and "epoch" not in fields:
                return name
    return ""


def _stamp(commands: list[tuple[str, str, list[bytes]]]) -> float:
    """The time (us) at which the script ran; 0 if it did not write one."""
    written = (
        _fields(command[2:]) for kind, _, command in commands if kind == "meta" and command[0].upper() == b"HSET"
    )
    return next((float(fields["stamp"]) for fields in written if "stamp" in fields), 0.0)


def _fields(args: list[bytes]) -> dict[str, bytes]:
    return {name.decode(): value for name, value in zip(args[::2], args[1::2], strict=True)}


def _tokens(packed: bytes) -> list[int]:
    values = array("I", packed[: len(packed) // 4 * 4])
    return values.tolist()


def _pid(owner: str) -> int:
    """The process id of an owner `<node>:<port>/<pid>`; 0 for a name of another form."""
    pid = owner.rpartition("/")[2]
    return int(pid) if pid.isdigit() else 0
