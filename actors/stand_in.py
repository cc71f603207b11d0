"""The stand-in: an HAProxy that serves while Serve replaces the one that has died.

Serve looks after HAProxy once a second, believes the third failure in a row, and then starts a new manager, a Python
process, which starts the next HAProxy: five seconds without a listener. It has no hook for this. So each HAProxy that
Serve starts has a watcher, a process that the kernel tells of the death, and that starts another HAProxy with the same
configuration at once. Serve does not see the stand-in, whose socket for commands has another name, and goes on to
replace the dead one. Serve's next HAProxy takes the listening sockets over from the stand-in, which then ends when its
last request has its answer.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

ROUTE = "\n    use_backend "  # in each configuration with a gateway
TITLE = "orca-stand-in"  # of the watcher's process
LONGEST = 60.0  # seconds after the death; if Serve has started no HAProxy until then, it has ended
PAUSE = 0.05  # seconds before a stand-in that has died is started again
ADMIN = re.compile(r"(?<=^    stats socket )\S+", re.MULTILINE)
PID = re.compile(r"^Pid: (\d+)$", re.MULTILINE)


class StandIn:
    """The stand-in for the HAProxy `binary` with the patched configuration at `config`."""

    def __init__(self, binary: str, config: Path, environment: Mapping[str, str]) -> None:
        self._text = config.read_text()
        found = ADMIN.search(self._text)
        assert found, "HAProxy's configuration has a socket for commands"
        self._admin = Path(found[0])
        self._own = self._admin.with_name("spare.sock")  # no longer than the name of the other one: paths have a limit
        self._theirs, self._config = config, config.with_name("spare.cfg")
        self._binary, self._environment = binary, environment

    def take_over(self) -> list[str]:
        """The options with which an HAProxy takes the sockets over from the stand-in; none if there is no stand-in.

        The first configuration of a new manager has no gateway. The stand-in's takes its place until Serve's controller
        has sent them.
        """
        if not (pid := _pid(self._own)):
            return []
        if ROUTE not in self._text:
            self._text = ADMIN.sub(str(self._admin), self._config.read_text())
            self._theirs.write_text(self._text)
        return ["-x", str(self._own), "-sf", pid]

    def watch(self) -> None:
        """Start the watcher of this process, which becomes HAProxy."""
        watched = os.pidfd_open(os.getpid())
        if not os.fork():
            self._follow(watched)
        os.close(watched)

    def _follow(self, watched: int) -> NoReturn:
        """Wait for the end of the process, and stand in for it unless another HAProxy of Serve serves already."""
        try:
            os.setsid()  # Ray kills the process group of a manager that has died
            Path("/proc/self/comm").write_text(TITLE)
            poll = select.poll()
            poll.register(watched, select.POLLIN)
            poll.poll()
            if not _pid(self._admin):
                self._serve()
        except Exception:
            traceback.print_exc()
        os._exit(0)

    def _serve(self) -> None:
        """Run the stand-in, another one after each death, until Serve's next HAProxy has told it to end."""
        self._config.touch(mode=0o600)
        self._config.write_text(ADMIN.sub(str(self._own), self._text))
        command = [self._binary, "-db", "-dR", "-f", str(self._config)]  # it shares no port with another HAProxy
        deadline, died = time.monotonic() + LONGEST, True
        while died:
            process = subprocess.Popen(command, env=self._environment, stdin=subprocess.DEVNULL)
            try:
                died = process.wait(deadline - time.monotonic()) < 0  # by a signal
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGUSR1)  # requests may end
                return
            time.sleep(PAUSE)


def answer_of(admin: Path, command: str) -> str:
    """The answer of the HAProxy that takes commands at this socket; empty if none does."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2.0)
        connection.connect(str(admin))
        connection.sendall(command.encode() + b"\n")
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    return ""


def _pid(admin: Path) -> str:
    """The process id of the HAProxy that takes commands at this socket; empty if none does."""
    found = PID.search(answer_of(admin, "show info"))
    return found[1] if found else ""
