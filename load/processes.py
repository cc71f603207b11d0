"""The processes of a server, as /proc describes them: their kinds, their processor time, when they began (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")  # in a second
OTHER = "Ray and others"
CLIENT = "client"
KINDS = {  # a kind of process, and parts of the titles that identify it; the first that matches counts
    "gateways": ("orca:gateway",),
    "schedulers": ("orca:scheduler",),
    "engines": ("EngineActor", "EngineCore", "VLLM::Worker"),
    "Redis": ("valkey-server", "redis-server"),
    "HAProxy": ("bin/haproxy",),
}


def kind_of(title: str) -> str:
    """The kind of process that has this title, its command line."""
    return next((kind for kind, parts in KINDS.items() if any(part in title for part in parts)), OTHER)


def title_of(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/PID/stat says of a process or a thread. Times are seconds, `began` since the machine's start."""

    name: str
    parent: int
    processor: float  # user and system
    began: float


def parse_stat(text: str) -> Stat:
    """The name may hold spaces and parentheses."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    processor = (int(fields[11]) + int(fields[12])) / TICKS
    return Stat(head.partition("(")[2], int(fields[1]), processor, int(fields[19]) / TICKS)


def stat_of(pid: int) -> Stat | None:
    """None if the process has ended."""
    return _read(Path(f"/proc/{pid}/stat"))


def processor_seconds(pids: Iterable[int]) -> dict[int, float]:
    """Processor seconds of the living ones of these processes so far."""
    return {pid: stat.processor for pid in pids if (stat := stat_of(pid))}


def by_kind(before: Mapping[int, float], after: Mapping[int, float]) -> dict[str, float]:
    """Processor seconds by kind of process between two readings; processes that have ended are left out."""
    spent = dict.fromkeys([*KINDS, OTHER], 0.0)
    for pid, seconds in after.items():
        spent[kind_of(title_of(pid))] += seconds - before.get(pid, 0.0)
    return spent


def busy_seconds() -> float:
    """Processor seconds of the whole machine so far, with those that its host took for others."""
    return parse_busy(Path("/proc/stat").read_text())


def parse_busy(text: str) -> float:
    """All of the first line of /proc/stat but the times of idleness and of waiting for disks."""
    user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, text.split("\n", 1)[0].split()[1:9])
    return (user + nice + system + interrupts + soft + stolen) / TICKS


def all_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def descendants(root: int) -> list[int]:
    """The processes below `root`."""
    children: dict[int, list[int]] = {}
    for pid in all_processes():
        if stat := stat_of(pid):
            children.setdefault(stat.parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _read(file: Path) -> Stat | None:
    try:
        return parse_stat(file.read_text(errors="replace"))
    except OSError:
        return None
