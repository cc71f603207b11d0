"""`orca serve` as a child process, as a user runs it: for tests and benchmarks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import ClassVar

import httpx
from prometheus_client.parser import text_string_to_metric_families

from actors.cluster.environment import RAY_FOLDER
from actors.cluster.processes import end_processes_of, processes_of

ROOT = Path(__file__).parents[1]
READY = 120.0  # seconds, also for what it says and answers later


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OrcaServer:
    """Started by `with`; stopped by what Ctrl-C sends. `lines` is what it printed. `port`: 0 for a free one."""

    running: ClassVar[weakref.WeakSet[OrcaServer]] = weakref.WeakSet()

    def __init__(self, data_dir: Path, *flags: str, port: int = 0) -> None:
        self.data_dir, self.port = data_dir, port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.lines: list[str] = []
        self._printed = threading.Condition()
        command = [sys.executable, "-m", "cli", "serve", "--port", str(self.port), "--data-dir", str(data_dir), *flags]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("ORCA_", "RAY_"))}
        environment["PYTHONPATH"] = str(ROOT)
        self.process = subprocess.Popen(
            command, cwd=data_dir, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        threading.Thread(target=self._read, daemon=True).start()
        self.running.add(self)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._printed:
                self.lines.append(line)
                self._printed.notify_all()
        with self._printed:
            self._printed.notify_all()

    def until(self, text: str, times: int = 1) -> None:
        """Wait until it has printed so many lines with `text`; fails when it ends, or takes too long."""

        def printed() -> bool:
            return sum(text in line for line in self.lines) >= times

        with self._printed:
            self._printed.wait_for(lambda: printed() or self.process.poll() is not None, READY)
        if not printed():
            self.__exit__()
            raise AssertionError(f"orca serve did not print {text!r}:\n" + "".join(self.lines))

    def __enter__(self) -> OrcaServer:
        self.until("ready at")
        return self

    def __exit__(self, *_: object) -> None:
        self.running.discard(self)
        try:
            self.stop()
        finally:
            if folder := self.cluster_folder():  # it was killed, or could not end
                end_processes_of(folder)

    def stop(self) -> int:
        """Exit status after an interrupt."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def end(self) -> int:
        """Exit status after an interrupt and, as soon as it was heard, another: it waits for nobody."""
        self.process.send_signal(signal.SIGINT)
        self.until("once more to stop at once")
        return self.stop()

    def cluster_folder(self) -> Path | None:
        """Where its cluster's files are, or were when it was killed; None after a regular end."""
        claim = self.data_dir / f"serve-{self.port}"
        return Path(name) if claim.exists() and (name := claim.read_text()) else None

    def complaints(self) -> str:
        """What our processes in its cluster, and Serve's, logged as warnings and errors, by file."""
        folder = self.cluster_folder()
        said = []
        for file in sorted(folder.glob(f"{RAY_FOLDER}/session_latest/logs/**/*")) if folder else []:
            if file.name.startswith("worker-") or (file.parent.name == "serve" and file.is_file()):
                lines = file.read_text(errors="replace").splitlines()
                said += [f"{file.name}: {line}" for line in lines if "WARNING" in line or "ERROR" in line]
        return "\n".join(said)

    def cluster(self, name: str = "") -> list[int]:
        """Processes of its cluster, all or those of that short name: gcs_server, raylet, haproxy, ..."""
        folder = self.cluster_folder()
        return [pid for pid, short in processes_of(folder).items() if name in ("", short)] if folder else []

    def pool_server(self) -> list[int]:
        """The server on its data folder, whoever started it."""
        return [pid for pid in _all_processes() if _is_server_in(self.data_dir, Path(f"/proc/{pid}"))]

    def kill_all(self) -> None:
        """SIGKILL to everything at once: itself, its cluster, the pool's server."""
        for pid in (self.process.pid, *self.pool_server(), *self.cluster()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def metrics(self) -> dict[str, float]:
        return metrics(self.url)

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of each process below this server, by title; equal titles added up."""
        spent: dict[str, float] = {}
        for pid in self.descendants():
            title = _title(pid).split(" ")[0].rpartition("/")[2]
            title = title.partition(".")[0] if title.startswith("ray::") else title  # without the method it runs
            spent[title] = spent.get(title, 0.0) + cpu_seconds_of(pid)
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

    def has_spares(self) -> bool:
        """Whether the owner of the seat had a spare of each kind, engine and scheduler, when it last looked."""
        metrics = self.metrics()
        return bool(metrics.get("orca:spare_ready") and metrics.get("orca:spare_schedulers"))

    def descendants(self) -> list[int]:
        return _descendants(self.process.pid)


def metrics(url: str) -> dict[str, float]:
    """Samples of a running server, without their labels, summed."""
    samples: dict[str, float] = {}
    reply = httpx.get(url + "/metrics", timeout=READY, verify=False)  # certificates take 30 ms to load, and it is HTTP
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
    return samples


def _all_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def _is_server_in(folder: Path, process: Path) -> bool:
    try:
        return (process / "cwd").samefile(folder) and (process / "comm").read_text().strip().endswith("-server")
    except OSError:
        return False  # ended meanwhile, or another user's


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def cpu_seconds_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid in _all_processes():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(pid)
    found, queue = [], [root]
    while queue:
        for pid in children.get(queue.pop(), []):
            found.append(pid)
            queue.append(pid)
    return found
