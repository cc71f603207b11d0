"""The leases of a pool's seats, replayed from its server's file: which owner may lose its seat, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    """`now` (us, Unix) is the time of the last script; the caller sets it before it reports the script's commands."""

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


def _pid(owner: str) -> int:
    """The process id of an owner `<node>:<port>/<pid>`; 0 for a name of another form."""
    pid = owner.rpartition("/")[2]
    return int(pid) if pid.isdigit() else 0
