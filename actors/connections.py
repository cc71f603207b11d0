"""How many connections a cluster takes: one number, from which the bounds of HAProxy and of gateways follow."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from actors.haproxy import REFUSED
from services.errors import SettingsError
from services.settings.settings import Settings

IDLE = 4096  # connections beyond those of requests: idle ones, and requests that do not generate
OTHER_FILES = 1024  # files of a process that are no connections of clients
FILES_EACH = 2  # HAProxy's: the client's connection, and that to the gateway


@dataclass(frozen=True, slots=True)
class Connections:
    """`served`: connections of clients, above which HAProxy refuses or closes them; `wanted`: what it would be with
    enough open files."""

    served: int
    wanted: int

    @property
    def most(self) -> int:
        """Connections that HAProxy has open, with those it is about to refuse."""
        return self.served + REFUSED


def streams(settings: Settings) -> int:
    """Requests that can be under way, one a sequence: all that the pool lets wait, and those that run. Each gateway
    takes as many, since it may be the only one left."""
    return settings.max_waiting + settings.engines * settings.max_batch_size


def connections(settings: Settings, files: int) -> Connections:
    """Those for processes that may have `files` open. With enough of them a client meets the pool's bound, which says
    when to come back, before the front door's.

    Raises SettingsError where that is too few to serve anybody.
    """
    wanted = streams(settings) + IDLE
    room = (files - OTHER_FILES) // FILES_EACH - REFUSED
    if room < 1:
        least = _files(REFUSED + 1)
        raise SettingsError(f"the hard limit of open files is {files}, at least {least} are needed: see `ulimit -Hn`")
    return Connections(min(wanted, room), wanted)


def _files(most: int) -> int:
    return OTHER_FILES + FILES_EACH * most


def raise_file_limit() -> int:
    """Let this process and those it starts open as many files as they may; returns how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def warning(settings: Settings, files: int) -> str:
    """What to tell the user where open files are too few for all that may wait; empty: they are enough."""
    has = connections(settings, files)
    if has.served >= has.wanted:
        return ""
    needed = _files(has.wanted + REFUSED)
    return (
        f"open files are limited to {files}: {has.served} connections are served at once, where "
        f"max_waiting={settings.max_waiting} asks for {has.wanted}; `ulimit -n {needed}` allows them"
    )
