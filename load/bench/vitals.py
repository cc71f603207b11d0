"""A server under pressure as seen from outside: memory by process, and how long `/health` takes."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event as Flag
from pathlib import Path

import httpx

from load import report
from load.processes import kind_of, title_of
from load.report import table
from load.server import OrcaServer

PROBE = 0.2  # seconds between requests of /health
PROBE_TIMEOUT = 2.0
SETTLED = 60.0  # seconds within which abandoned requests should be cancelled


def settled(server: OrcaServer) -> str:
    """Wait until no request waits or runs in the pool; returns the seconds that this took, in words."""
    began = time.monotonic()
    return f"{time.monotonic() - began:.1f}" if server.until_idle(SETTLED) else f"over {SETTLED:.0f}"


def memory(server: OrcaServer) -> dict[str, float]:
    """The memory of our processes in MiB (PSS) by kind; processes of one kind are added up."""
    found: dict[str, float] = {}
    for pid in {*server.cluster(), *server.pool_server()}:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        pss = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
        name = kind_of(title_of(pid))
        found[name] = found.get(name, 0.0) + pss
    return found


def print_memory(memories: list[tuple[str, dict[str, float]]]) -> None:
    names = sorted({name for _, found in memories for name in found})
    print("\nMemory, MiB\n")
    print(table(("", *names), [(w, *(f"{found.get(n, 0):.0f}" for n in names)) for w, found in memories]), flush=True)


def probe(url: str, stop: Flag, out: multiprocessing.Queue[list[float]]) -> None:
    """Measure how long /health takes, in a process of its own; infinity if it does not answer."""
    times = []
    with httpx.Client(timeout=PROBE_TIMEOUT) as client:
        while not stop.wait(PROBE):
            began = time.monotonic()
            try:
                fine = client.get(url + "/health").status_code == 200
            except httpx.HTTPError:
                fine = False
            times.append(time.monotonic() - began if fine else float("inf"))
    out.put(times)


@contextlib.contextmanager
def probed(url: str) -> Iterator[list[float]]:
    """Probe /health from another process meanwhile; the list has the times afterwards."""
    times: list[float] = []
    stop = multiprocessing.Event()
    out: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
    watcher = multiprocessing.Process(target=probe, args=(url, stop, out))
    watcher.start()
    try:
        yield times
    finally:
        stop.set()
        times += out.get()
        watcher.join()


def health(times: list[float]) -> tuple[str, str]:
    """How many probes were answered, and the time of the slowest in seconds."""
    answered = [t for t in times if t < float("inf")]
    return f"{len(answered)} of {len(times)}", quantile(answered, 1)


def quantile(values: list[float], share: float, unit: float = 1.0, digits: int = 2) -> str:
    """The quantile `share` in this unit, as text; "-" if there are no values."""
    return f"{report.quantile(values, share) / unit:.{digits}f}" if values else "-"
