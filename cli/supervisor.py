"""Supervisor: one cluster on one port, started again whenever it dies. It does not import Ray, so that Ray cannot end
it; the cluster is a child process (`actors/cluster/process.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from actors.cluster.environment import RAY_FOLDER, mark_of, prepared_environment
from actors.cluster.processes import describe, end_processes_of, ports_of, processes_of
from actors.front_door import connection_limits, raise_file_limit
from cli.port_claim import PortClaim
from services.errors import OrcaError
from services.processes import until_ended
from services.settings.settings import Settings

READY_TIMEOUT = 900.0  # seconds, for models that load slowly
STOP_MARGIN = 20.0  # seconds beyond `drain_timeout` in which Serve, engines and Ray must end
SETTLED = 60.0  # seconds; a cluster that dies sooner is started again after a pause
LONGEST_PAUSE = 30.0
RAYLET = "raylet"  # the parent of Ray's other processes, which end with it
SHORT_TEMP = re.compile(r"[A-Za-z0-9/._-]{1,7}")  # HAProxy reads the paths of sockets below it, up to 97 characters
LINE = 1 << 20  # bytes


class ClusterProcess:
    """A cluster in a child process, started at once, with its files in `folder`. `keep` are open files that the child
    inherits and holds.

    Raises SettingsError if it may open too few files.
    """

    def __init__(self, folder: Path, settings: Settings, keep: Sequence[int]) -> None:
        self.folder = folder
        self._log = folder / "driver.log"
        maxconn = connection_limits(settings, raise_file_limit()).maxconn
        environment, guard = prepared_environment(folder, settings, maxconn)
        self._pipe, theirs = socket.socketpair()
        with guard, theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "actors.cluster.process", str(theirs.fileno()), str(folder)],
                env=environment,
                cwd=folder,  # Ray's workers import from the folder in which they are started
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(), guard.fileno(), *keep),
                start_new_session=True,  # Ctrl-C in a terminal is for the supervisor, which passes it on
            )
        self._send(settings.with_key_hashes())
        self._ray_runs = asyncio.Event()

    def _send(self, value: Any) -> None:
        with contextlib.suppress(OSError):  # the child has died; `until_ready` and `death` report that
            self._pipe.sendall(json.dumps(value).encode() + b"\n")

    async def until_ready(
        self,
        redis_url: str,
        models: Mapping[str, str],
        was_ready: bool,
        answers: Callable[[], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        """Let the child start gateways and schedulers for this pool and wait for `answers`. `models` are the pinned
        names of the models by their names in the settings. Engines may fail again and again meanwhile if a cluster
        `was_ready` before.

        Raises OrcaError if it does not get ready: with the child's own message if it sent one, else with what died.
        """
        self._send({"redis_url": redis_url, "models": models, "was_ready": was_ready})
        reader, writer = await asyncio.open_unix_connection(sock=self._pipe.dup(), limit=LINE)
        answering, failing = asyncio.ensure_future(answers()), asyncio.create_task(self._listen(reader, say))
        dying = asyncio.create_task(self.death())
        tasks: list[asyncio.Future[Any]] = [failing, answering, dying]
        try:
            await asyncio.wait(tasks, timeout=READY_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if dying.done():  # the child's last message says more than its death
                await asyncio.wait(tasks[:2], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            if failing.done() or answering.done():
                return (failing if failing.done() else answering).result()
            raise OrcaError(dying.result() if dying.done() else f"not ready after {READY_TIMEOUT:.0f} s")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # passes on a cancellation of this task
            writer.close()

    async def _listen(self, reader: asyncio.StreamReader, say: Callable[[str], None]) -> NoReturn:
        """Read what the child sends. Raises OrcaError as `until_ready`."""
        while line := await _next_line(reader):
            received = json.loads(line)
            if "error" in received:
                raise OrcaError(received["error"])
            if "says" in received:
                say(received["says"])
            else:
                say("starting engines, schedulers and gateways")
                self._ray_runs.set()
        words = self._log.read_text(errors="replace").split("\n")
        why = next((f": {line.strip()}" for line in reversed(words) if line.strip()), "")
        raise OrcaError(f"the process that holds Ray ended{why}")

    def start_spares(self) -> None:
        """Let the cluster start the processes without which it is ready."""
        self._send("ready")

    async def death(self) -> str:
        """Wait until the child or the head's raylet has died; return a message that says which."""
        await self._ray_runs.wait()
        raylet = next((pid for pid, name in processes_of(self.folder).items() if name == RAYLET), None)
        watched = {"Ray's raylet": raylet, "the process that holds Ray": self._process.pid}
        waiting = {asyncio.create_task(until_ended(pid)): name for name, pid in watched.items()}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return f"{waiting[done.pop()]} died"
        finally:
            for task in waiting:
                task.cancel()

    async def stop(self, timeout: float) -> None:
        """Let the cluster drain and end; wait for at most `timeout` seconds."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(until_ended(self._process.pid), timeout)

    def end(self, logs: Path | None = None) -> None:
        """Kill all processes of the cluster and remove its files; its logs are moved to `logs` if that is given."""
        end_processes_of(self.folder)
        self._process.wait()
        self._pipe.close()
        if logs is not None:
            _save_logs(self.folder, logs)
        shutil.rmtree(self.folder, ignore_errors=True)


class Supervisor:
    """Keeps a cluster running; the first one's process is started at once. `until_ready` returns when the API answers,
    `say` prints a line for the user."""

    def __init__(
        self,
        settings: Settings,
        claim: PortClaim,
        keep: Sequence[int],
        until_ready: Callable[[], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        self._settings, self._claim, self._keep, self._until_ready, self._say = settings, claim, keep, until_ready, say
        self._logs = settings.data_dir / f"serve-{settings.port}.logs"
        self._cluster = self._start()

    def _start(self) -> ClusterProcess:
        folder = _make_folder()
        self._claim.folder = folder  # before there is a process, so that the next `orca serve` finds them all
        name, _, value = mark_of(folder).partition("=")
        os.environ[name] = value  # what this process starts, such as a compiler, is ended with the cluster
        return ClusterProcess(folder, self._settings, self._keep)

    @property
    def folder(self) -> Path:
        """The folder of the cluster that runs now."""
        return self._cluster.folder

    async def run(self, redis_url: str, models: Mapping[str, str], ready: str) -> None:
        """Keep a cluster of these models running until cancelled; print the line `ready` when it is ready. `models`:
        see `ClusterProcess.until_ready`.

        Raises OrcaError if the first cluster fails.
        """
        was_ready, died, quick_deaths = False, 0.0, 0
        while True:
            began = time.monotonic()
            try:
                await self._cluster.until_ready(redis_url, models, was_ready, self._until_ready, self._say)
                self._say(f"ready again after {time.monotonic() - died:.1f} s" if was_ready else ready)
                self._say(describe(ports_of(processes_of(self._cluster.folder))))
                self._cluster.start_spares()
                was_ready = True
                cause = await self._cluster.death()
            except OrcaError as error:
                cause = str(error)
            died = time.monotonic()
            self._cluster.end(self._logs)
            if not was_ready:
                raise OrcaError(f"{cause}; logs are in {self._logs}")
            quick_deaths = quick_deaths + 1 if died - began < SETTLED else 0
            pause = min(2.0 ** (quick_deaths - 2), LONGEST_PAUSE) if quick_deaths > 1 else 0.0
            when = f" in {pause:.0f} s" * bool(pause)
            self._say(f"{cause}; starting the cluster again{when}, logs are in {self._logs}")
            await asyncio.sleep(pause)
            self._cluster = self._start()

    async def stop(self) -> None:
        """Let the cluster drain, for at most `drain_timeout` seconds and a margin."""
        await self._cluster.stop(self._settings.drain_timeout + STOP_MARGIN)

    def end(self) -> None:
        """Kill what is left of the cluster and remove its files."""
        self._cluster.end()
        self._claim.folder = None


async def _next_line(reader: asyncio.StreamReader) -> bytes:
    """The next line; empty when the other process has ended, whether or not it has read all that was sent to it."""
    try:
        return await reader.readline()
    except ConnectionError:
        return b""


def _make_folder() -> Path:
    """Make a new folder for the files of a cluster."""
    temp = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="orca-serve-", dir=temp if SHORT_TEMP.fullmatch(temp) else "/tmp"))


def _save_logs(folder: Path, logs: Path) -> None:
    """Move Ray's logs and the driver's to `logs`, which replace those saved before."""
    shutil.rmtree(logs, ignore_errors=True)
    with contextlib.suppress(OSError):
        shutil.move(folder / RAY_FOLDER / "session_latest" / "logs", logs)
        shutil.move(folder / "driver.log", logs)
