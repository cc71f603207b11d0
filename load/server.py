"""`orca serve` as a child process, as a user runs it: for tests and benchmarks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[1]
READY = 120.0  # seconds


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OrcaServer:
    """Started by `with`; stopped by what Ctrl-C sends. `lines` is what it printed."""

    def __init__(self, data_dir: Path, *flags: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.lines: list[str] = []
        self._ready = threading.Event()
        command = [sys.executable, "-m", "cli", "serve", "--port", str(self.port), "--data-dir", str(data_dir), *flags]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("ORCA_", "RAY_"))}
        environment["PYTHONPATH"] = str(ROOT)
        self.process = subprocess.Popen(
            command, cwd=data_dir, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if "ready at" in line:
                self._ready.set()
        self._ready.set()  # ended: nobody waits for it any more

    def __enter__(self) -> OrcaServer:
        if not self._ready.wait(READY) or self.process.poll() is not None:
            self.stop()
            raise AssertionError("orca serve did not get ready:\n" + "".join(self.lines))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Exit status after an interrupt."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def metrics(self) -> dict[str, float]:
        """Samples without their labels, summed."""
        samples: dict[str, float] = {}
        for family in text_string_to_metric_families(httpx.get(self.url + "/metrics").text):
            for sample in family.samples:
                samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
        return samples

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of each process below this server, by title; equal titles added up."""
        spent: dict[str, float] = {}
        for pid in self.descendants():
            title = _title(pid).split(" ")[0].rpartition("/")[2]
            title = title.partition(".")[0] if title.startswith("ray::") else title  # without the method it runs
            spent[title] = spent.get(title, 0.0) + _cpu_seconds(pid)
        return spent

    def pids(self, title: str) -> list[int]:
        """Processes below this server whose title starts with `title`."""
        return [pid for pid in _descendants(self.process.pid) if _title(pid).startswith(title)]

    def engine(self) -> int:
        """The process that has the weights, of a server with one engine; 0 while there is none."""
        return int(self.metrics().get("orca:engine_pid", 0))

    def scheduler(self) -> int:
        """The process that holds the seat, of a server with one engine; 0 while nobody does."""
        return int(self.metrics().get("orca:scheduler_pid", 0))

    def descendants(self) -> list[int]:
        return _descendants(self.process.pid)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, queue = [], [root]
    while queue:
        for pid in children.get(queue.pop(), []):
            found.append(pid)
            queue.append(pid)
    return found
