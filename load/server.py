"""`orca serve` as a child process, as a user runs it, and servers of pools for it: for tests and benchmarks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from actors.cluster.environment import LAST_PORT, RAY_FOLDER
from actors.cluster.processes import end_processes_of, processes_of
from load.processes import descendants, processor_seconds, title_of
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer

ROOT = Path(__file__).parents[1]
READY = 120.0  # seconds; more for a first start, which downloads and compiles


PORTS = range(LAST_PORT, 32_768)  # between those of Ray and those that Linux gives to outgoing connections


def free_port() -> int:
    """A port that is free now. One that the kernel chooses could go to a connection before a server takes it."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("0.0.0.0", port))
            return port


class OrcaServer:
    """`orca serve`: ready within `with`, interrupted as by Ctrl-C at its end. `lines` has what it printed. `port`: 0
    takes a free one. `ready`: seconds until it is ready, and until it prints what a caller waits for. `constants` are
    those of `services.settings.constants` that this server has otherwise."""

    running: ClassVar[weakref.WeakSet[OrcaServer]] = weakref.WeakSet()

    def __init__(self, data_dir: Path, *flags: str, port: int = 0, ready: float = READY, **constants: float) -> None:
        self.data_dir, self.port, self._ready = data_dir, port or free_port(), ready
        self.url = f"http://127.0.0.1:{self.port}"
        self.lines: list[str] = []
        self._printed = threading.Condition()
        command = [sys.executable, "-m", "cli", "serve", "--port", str(self.port), "--data-dir", str(data_dir), *flags]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("ORCA_", "RAY_"))}
        environment |= {"PYTHONPATH": str(ROOT), "ORCA_CONSTANTS": json.dumps(constants)}
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
        self.process.wait()  # its output ends before it does, and `until` looks at both
        with self._printed:
            self._printed.notify_all()

    def until(self, text: str, times: int = 1) -> None:
        """Wait until it has printed `times` lines with `text`. Raises AssertionError if it ends or takes too long."""

        def printed() -> bool:
            return sum(text in line for line in self.lines) >= times

        with self._printed:
            self._printed.wait_for(lambda: printed() or self.process.poll() is not None, self._ready)
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
            if folder := self.cluster_folder():  # it was killed, or could not stop
                end_processes_of(folder)

    def stop(self) -> int:
        """Interrupt it; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def end(self) -> int:
        """Interrupt it twice, so that it does not wait for open streams; returns the exit status."""
        self.process.send_signal(signal.SIGINT)
        self.until("once more to stop at once")
        return self.stop()

    def cluster_folder(self) -> Path | None:
        """The folder of its cluster's files; it remains if the server was killed. None after a regular end."""
        claim = self.data_dir / f"serve-{self.port}"
        return Path(lines[0]) if claim.exists() and (lines := claim.read_text().splitlines()) else None

    def complaints(self) -> str:
        """The warnings and errors that our processes and Serve's in its cluster have logged, by file."""
        folder = self.cluster_folder()
        found = []
        for file in sorted(folder.glob(f"{RAY_FOLDER}/session_latest/logs/**/*")) if folder else []:
            if file.name.startswith("worker-") or (file.parent.name == "serve" and file.is_file()):
                lines = file.read_text(errors="replace").splitlines()
                found += [f"{file.name}: {line}" for line in lines if "WARNING" in line or "ERROR" in line]
        return "\n".join(found)

    def cluster(self, name: str = "") -> list[int]:
        """Process ids of its cluster, of all or of those with this short name: gcs_server, raylet, haproxy, ..."""
        folder = self.cluster_folder()
        return [pid for pid, short in processes_of(folder).items() if name in ("", short)] if folder else []

    @property
    def pool_dir(self) -> Path:
        """The folder of its pool's server, if it is not that of the data folder's first server."""
        own = self.data_dir / f"port-{self.port}"
        return own if own.exists() else self.data_dir

    def pool_server(self) -> list[int]:
        """Process ids of the pool's server on its data folder, whichever process started it."""
        return [pid for pid in psutil.pids() if _is_server_in(self.pool_dir, Path(f"/proc/{pid}"))]

    def kill_all(self) -> None:
        """Send SIGKILL to all its processes at once: itself, its cluster, the pool's server."""
        for pid in (self.process.pid, *self.pool_server(), *self.cluster()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def metrics(self) -> dict[str, float]:
        return metrics(self.url)

    def processor_seconds(self) -> dict[int, float]:
        """Processor seconds of its living processes so far, itself included, by their ids."""
        return processor_seconds([self.process.pid, *descendants(self.process.pid)])

    def pids(self, title: str) -> list[int]:
        """Process ids below this server whose title starts with `title`."""
        return [pid for pid in descendants(self.process.pid) if title_of(pid).startswith(title)]

    def engine(self) -> int:
        """The id of the process that has the weights, for a server with one engine; 0 while there is none."""
        return int(self.metrics().get("orca:engine_pid", 0))

    def scheduler(self) -> int:
        """The id of the process that holds the seat, for a server with one engine; 0 while none does."""
        return int(self.metrics().get("orca:scheduler_pid", 0))

    def has_spares(self) -> bool:
        """Whether the owner of the seat has a spare engine and a spare scheduler, as it last reported."""
        metrics = self.metrics()
        return bool(metrics.get("orca:spare_ready") and metrics.get("orca:spare_schedulers"))

    def until_spares(self) -> None:
        """Wait until it `has_spares`: a process that is killed before that is replaced as slowly as one that starts.
        Raises AssertionError if that takes too long."""
        end = time.monotonic() + self._ready
        while not self.has_spares():
            assert time.monotonic() < end, f"no spares within {self._ready:.0f} s"
            time.sleep(0.1)

    def descendants(self) -> list[int]:
        return descendants(self.process.pid)

    def until_idle(self, seconds: float) -> bool:
        """Wait until no request waits or runs in the pool, at most `seconds`; returns whether that is so."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(httpx.HTTPError):  # also while no scheduler reports
                found = self.metrics()
                if found.get("vllm:num_requests_running") == found.get("vllm:num_requests_waiting") == 0:
                    return True
            time.sleep(0.5)
        return False


@contextlib.asynccontextmanager
async def pool_servers(
    folder: Path, count: int, durability: Literal["everysec", "strict"] = "everysec"
) -> AsyncIterator[list[PoolServer]]:
    """So many servers of pools, on folders of their own below `folder`. Each is started again when it dies."""
    async with contextlib.AsyncExitStack() as exits:
        servers = [PoolServer(choose_server(), folder / f"shard-{number}", durability) for number in range(count)]
        for server in servers:
            await server.start()
            exits.push_async_callback(server.stop)
        yield servers


def urls_of(servers: Sequence[PoolServer]) -> str:
    """The setting `redis_url` with each of these as a shard."""
    return " ".join(f"{number}={server.url}" for number, server in enumerate(servers))


def metrics(url: str) -> dict[str, float]:
    """The metrics of a running server by name; samples that differ only in labels are added up."""
    samples: dict[str, float] = {}
    reply = httpx.get(url + "/metrics", timeout=READY, verify=False)  # it is HTTP, and loading certificates takes 30 ms
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
    return samples


def _is_server_in(folder: Path, process: Path) -> bool:
    try:
        return (process / "cwd").samefile(folder) and (process / "comm").read_text().strip().endswith("-server")
    except OSError:
        return False  # it has ended, or belongs to another user


async def until(happened: Callable[[], bool], seconds: float = READY, every: float = 0.05) -> None:
    """Wait until `happened()`, which is checked every `every` seconds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not happened():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(every)
