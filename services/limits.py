"""The processors and the memory that this process may use: those of the machine, or fewer by its control groups.

A container's limits are those of its control group, of version 1 or 2, or of a group around it. A CPU limit is a quota
of time in each period, which the mask of allowed processors does not show; a set of processors (cpuset) is in the mask.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

UNLIMITED = 1 << 62  # bytes; version 1 says nearly 2**63 for no limit
PROC = Path("/proc")


def usable_cores(proc: Path = PROC) -> int:
    """How many threads can compute all the time: as many as there are processors in the mask, or whole processors in
    the smallest quota; at least 1.

    Not rounded up: with a thread more than the quota has processors, all threads stop at the end of each period.
    """
    quota = min((_quota(group) for group in _groups("cpu", proc)), default=UNLIMITED)
    return max(1, min(len(os.sched_getaffinity(0)), int(quota)))


def total_memory(proc: Path = PROC) -> int:
    """Bytes of memory of the machine, or the lowest limit of a control group."""
    return min([_meminfo("MemTotal", proc), *(_limit(group) for group in _groups("memory", proc))])


def free_memory(proc: Path = PROC) -> int:
    """Bytes that the machine and every control group have left, without taking them from a process."""
    left = [max(0, limit - _used(group)) for group in _groups("memory", proc) if (limit := _limit(group)) < UNLIMITED]
    return min([_meminfo("MemAvailable", proc), *left])


def return_memory() -> None:
    """Return free memory of this process to the system. The C library keeps it per thread: without this, a process
    would go on to hold what a model's start, or a few long bodies, needed at once."""
    trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def _groups(controller: str, proc: Path) -> Iterator[Path]:
    """Folders of the control groups of this process that have the controller, from its own one outwards as far as they
    are visible here. A container sees its own group as the root of the mounted tree, in version 1 by a mount of a part
    of the tree, whose root mountinfo names."""
    paths = _paths(proc)
    for root, mount, version in _mounts(controller, proc):
        path = paths.get(controller if version == 1 else "")
        if path is None:
            continue
        inner = Path(path).relative_to(root) if Path(path).is_relative_to(root) else Path()
        group = mount / inner
        yield group
        yield from (parent for parent in group.parents if parent.is_relative_to(mount))


def _paths(proc: Path) -> dict[str, str]:
    """The path of this process's group, by controller; that of version 2 by the empty string."""
    found: dict[str, str] = {}
    for line in _lines(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def _mounts(controller: str, proc: Path) -> Iterator[tuple[str, Path, int]]:
    """Mounted trees of groups that may have the controller: the group that is the root, the folder, the version."""
    for line in _lines(proc / "self/mountinfo"):
        mount, _, file_system = line.partition(" - ")
        root, where = mount.split()[3:5]
        kind, _, options = file_system.split(maxsplit=2)
        if kind == "cgroup2":
            yield root, Path(where), 2
        elif kind == "cgroup" and controller in options.split(","):
            yield root, Path(where), 1


def _quota(group: Path) -> float:
    """Processors that the group may use on average; UNLIMITED without a quota."""
    if words := _words(group / "cpu.max"):
        quota, period = words[0], words[1]
    else:
        quota, period = (_first(group / f"cpu.cfs_{name}_us", "-1") for name in ("quota", "period"))
    return UNLIMITED if quota in ("max", "-1") else int(quota) / int(period)


def _limit(group: Path) -> int:
    """The group's limit in bytes; UNLIMITED if there is none."""
    limit = _first(group / "memory.max", "") or _first(group / "memory.limit_in_bytes", "max")
    return UNLIMITED if limit == "max" else min(UNLIMITED, int(limit))


def _used(group: Path) -> int:
    """Bytes that the group uses, without cached files that nobody has read a second time: these make room at once."""
    used = _first(group / "memory.current", "") or _first(group / "memory.usage_in_bytes", "0")
    counted: dict[str, str] = dict(line.split(maxsplit=1) for line in _lines(group / "memory.stat"))
    # version 1: the plain names leave out the groups within
    return int(used) - int(counted.get("total_inactive_file", counted.get("inactive_file", "0")))


def _meminfo(name: str, proc: Path) -> int:
    for line in _lines(proc / "meminfo"):
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return UNLIMITED  # no Linux


def _lines(file: Path) -> list[str]:
    """The lines of a file of the kernel; none if it is absent."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _words(file: Path) -> list[str]:
    return " ".join(_lines(file)).split()


def _first(file: Path, default: str) -> str:
    return next(iter(_words(file)), default)
