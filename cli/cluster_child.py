"""ClusterChild: a cluster in a process of its own, as its supervisor sees it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from actors.connections import connections, raise_file_limit
from actors.environment import RAY_FOLDER, prepared_environment
from actors.leftovers import end_processes_of, processes_of
from services.errors import OrcaError
from services.settings.settings import Settings

HEAD = ("gcs_server", "raylet")  # the processes of Ray's head without which nothing is repaired any more
LONGEST_TEMP = 16  # bytes; the paths of Ray's sockets below it must stay under 107
LINE = 1 << 20  # bytes


def make_folder() -> Path:
    """A new folder for a cluster's files."""
    temp = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="orca-serve-", dir=temp if len(os.fsencode(temp)) <= LONGEST_TEMP else "/tmp"))


class ClusterChild:
    """Starts at once, with its files in `folder`; `keep` are open files that it is to inherit and hold.

    Raises SettingsError where it may open too few files."""

    def __init__(self, folder: Path, settings: Settings, keep: Sequence[int]) -> None:
        self.folder = folder
        most = connections(settings, raise_file_limit()).most
        environment, guard = prepared_environment(folder, settings, most)
        self._channel, theirs = socket.socketpair()
        with guard, theirs, (folder / "driver.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "actors.cluster_process", str(theirs.fileno()), str(folder)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(), guard.fileno(), *keep),
                start_new_session=True,  # a terminal's Ctrl-C is for the supervisor, which passes it on
            )
        self._say(settings.with_key_hashes())
        self._ray_runs = asyncio.Event()

    def _say(self, value: Any) -> None:
        with contextlib.suppress(OSError):  # it died; whoever waits for it learns that
            self._channel.sendall(json.dumps(value).encode() + b"\n")

    async def up(self, redis_url: str, model: str, say: Callable[[str], None]) -> None:
        """Wait until gateways and schedulers of this pool and this pinned model run. Raises OrcaError with what the
        process said when it ended instead."""
        self._say({"redis_url": redis_url, "model": model})
        reader, writer = await asyncio.open_unix_connection(sock=self._channel.dup(), limit=LINE)
        try:
            while line := await reader.readline():
                said = json.loads(line)
                if "error" in said:
                    raise OrcaError(said["error"])
                if said["at"] == "serve":
                    return
                say("starting engines, schedulers and gateways")
                self._ray_runs.set()
        finally:
            writer.close()
        raise OrcaError("the process that holds Ray ended")

    async def death(self) -> str:
        """Wait until the process or Ray's head has died; says which."""
        await self._ray_runs.wait()
        found = {name: pid for pid, name in processes_of(self.folder).items() if name in HEAD}
        watched = {f"Ray's {name}": found.get(name) for name in HEAD}
        watched["the process that holds Ray"] = self._process.pid
        waiting = {asyncio.create_task(ended(pid)): name for name, pid in watched.items()}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return f"{waiting[done.pop()]} died"
        finally:
            for task in waiting:
                task.cancel()

    async def stop(self, timeout: float) -> None:
        """Tell it to drain and to end; whatever is left after `timeout` seconds is killed."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended(self._process.pid), timeout)

    def end(self, logs: Path | None = None) -> None:
        """Kill all of the cluster and remove its files; what it logged is moved to `logs`."""
        end_processes_of(self.folder)
        self._process.wait()
        self._channel.close()
        if logs is not None:
            _save_logs(self.folder, logs)
        shutil.rmtree(self.folder, ignore_errors=True)


async def ended(pid: int | None) -> None:
    """Wait until a process has ended, if there is one."""
    if pid is None:
        return
    try:
        number = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(number, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(number)
        os.close(number)


def _save_logs(folder: Path, logs: Path) -> None:
    """Ray's logs and the driver's, in place of what was saved before."""
    shutil.rmtree(logs, ignore_errors=True)
    with contextlib.suppress(OSError):
        shutil.move(folder / RAY_FOLDER / "session_latest" / "logs", logs)
        shutil.move(folder / "driver.log", logs)
