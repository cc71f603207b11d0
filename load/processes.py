"""The processes of a server: their kinds and their processor time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import psutil

OTHER = "Ray and others"
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
        return " ".join(psutil.Process(pid).cmdline()).strip()
    except psutil.Error:
        return ""


def descendants(root: int) -> list[int]:
    """The processes below `root`."""
    try:
        return [child.pid for child in psutil.Process(root).children(recursive=True)]
    except psutil.Error:
        return []


def processor_seconds(pids: Iterable[int]) -> dict[int, float]:
    """Processor seconds (user and system) of the living ones of these processes so far."""
    found = {}
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            continue
        found[pid] = float(times.user + times.system)
    return found


def memory(root: int) -> float:
    """Bytes of the processes `root` and below (PSS: pages that several share count once)."""
    found = 0.0
    for pid in (root, *descendants(root)):
        with suppress(psutil.Error):
            found += psutil.Process(pid).memory_full_info().pss
    return found


def by_kind(before: Mapping[int, float], after: Mapping[int, float]) -> dict[str, float]:
    """Processor seconds by kind of process between two readings; processes that have ended are left out."""
    spent = dict.fromkeys([*KINDS, OTHER], 0.0)
    for pid, seconds in after.items():
        spent[kind_of(title_of(pid))] += seconds - before.get(pid, 0.0)
    return spent


def busy_seconds() -> float:
    """Processor seconds of the whole machine so far, with those that its host took for others."""
    now = psutil.cpu_times()
    return float(
        sum(now) - now.idle - getattr(now, "iowait", 0.0) - getattr(now, "guest", 0.0) - getattr(now, "guest_nice", 0.0)
    )
