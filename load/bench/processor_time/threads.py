"""Processor time by process and thread, as /proc counts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from load.bench.parts.start import short
from load.processes import OTHER, kind_of, threads_of, title_of

Reading = dict[tuple[int, int], tuple[str, float]]  # process and thread -> the thread's name, seconds
Row = tuple[str, str]  # a process's kind, or its title where it is one of others, and a thread's name


@dataclass(frozen=True, slots=True)
class Load:
    """Processor seconds of threads while a load ran, for each of its `units`: tokens, or seconds without requests."""

    name: str
    seconds: Mapping[Row, float]
    units: float

    def of(self, row: Row) -> float:
        """Milliseconds of a unit."""
        return self.seconds.get(row, 0.0) / self.units * 1e3

    def of_process(self, process: str) -> float:
        """The same of all threads of a process."""
        return sum(self.of(row) for row in self.seconds if row[0] == process)


def read(pids: Iterable[int]) -> Reading:
    """The processor seconds of all threads of these processes so far."""
    return {(pid, thread): (stat.name, stat.processor) for pid in pids for thread, stat in threads_of(pid).items()}


def spent(before: Reading, after: Reading) -> dict[Row, float]:
    """Processor seconds between two readings; threads of equal names in processes of one kind are added up, and the
    threads that ended between them are left out."""
    found: dict[Row, float] = {}
    for place, (name, seconds) in after.items():
        title = title_of(place[0])
        kind = kind_of(title)
        row = (short(title) if kind == OTHER and title else kind, _same(name))
        found[row] = found.get(row, 0.0) + seconds - before.get(place, ("", 0.0))[1]
    return found


def rows_of(loads: Iterable[Load], least: float) -> list[list[str]]:
    """A line for each process and for each of its threads that takes at least the share `least` of some load's time,
    the costliest first by the last load."""
    loads = list(loads)
    all_rows = {row for load in loads for row in load.seconds}
    total = {load.name: sum(load.of(row) for row in all_rows) or 1.0 for load in loads}
    lines = [["in all", "", *(f"{total[load.name]:.3f}" for load in loads)]]
    processes = {process for process, _ in all_rows}
    for process in sorted(processes, key=lambda name: -loads[-1].of_process(name)):
        if not any(load.of_process(process) >= least * total[load.name] for load in loads):
            continue
        lines.append([f"**{process}**", "", *(f"{load.of_process(process):.3f}" for load in loads)])
        threads = [row for row in all_rows if row[0] == process]
        shown = [row for row in threads if any(load.of(row) >= least * total[load.name] for load in loads)]
        if len(threads) > 1:
            shown.sort(key=lambda row: -loads[-1].of(row))
            lines += [["", row[1], *(f"{load.of(row):.3f}" for load in loads)] for row in shown]
    return lines


def _same(name: str) -> str:
    """A thread's name without the number that tells it from others of its kind."""
    return name.rstrip("0123456789").rstrip("-_.:/") or name
