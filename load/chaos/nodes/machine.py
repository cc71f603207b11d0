"""A machine: processes in namespaces of their own for network, processes and mounts, as those of a container; and the
network of machines.

Whatever kills its first process ends all others of the machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from load.server import ROOT

BRIDGE = "nodes0"
HERE = "10.77.0.1"  # the address of this process: of the pool's server and the clients
PREFIX = 24
FIRST = 11  # the last number of the first machine's address
TIMEOUT = 30.0  # seconds
UP = "machine.up"  # a file in the machine's /tmp: its network and mounts are there
NAMESPACES = ("--net", "--pid", "--mount")
# `$1` is the address, `$2` the folder that is /tmp there, `$3` the checkout; `$4` its place in that folder or empty.
# What follows is the command. A command that ends is run again, after what it left has been killed, as a container that
# is started again.
INIT = f"""
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip address add "$1/{PREFIX}" dev eth0 && ip link set eth0 up || exit 1
[ -z "$4" ] || {{ mkdir -p "$4" && mount --bind "$3" "$4"; }} || exit 1
mount -t tmpfs tmpfs /dev/shm && mount --rbind "$2" /tmp && : >/tmp/{UP} || exit 1
shift 4
while :; do
  "$@"
  echo "the command ended with status $?; it is run again"
  kill -9 -1
  sleep 1
done
"""


class Network:
    """A bridge with this process on it. It disappears with the namespace."""

    def __init__(self) -> None:
        ip("link", "set", "lo", "up")
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("address", "add", f"{HERE}/{PREFIX}", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        self._machines: list[str] = []

    def reserve(self, machine: str) -> str:
        """The address of a new machine."""
        self._machines.append(machine)
        return f"10.77.0.{FIRST + len(self._machines) - 1}"

    def connect(self, machine: str, pid: int) -> None:
        """Give the machine whose namespace the process `pid` has a link, which is called `eth0` there."""
        link = self._link(machine)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self.mend(machine)
        ip("link", "set", link, "up")

    def cut(self, machine: str) -> None:
        """Lose all packets from and to a machine, without a sign of it to either side."""
        ip("link", "set", self._link(machine), "nomaster")

    def mend(self, machine: str) -> None:
        ip("link", "set", self._link(machine), "master", BRIDGE)

    def _link(self, machine: str) -> str:
        return f"link{self._machines.index(machine)}"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Machine:
    """A machine on `network`. `folder` is its /tmp, where its output is as well: `machine.log`."""

    def __init__(self, name: str, folder: Path, network: Network, environment: Mapping[str, str]) -> None:
        self.name, self.folder = name, folder
        self.address = network.reserve(name)
        self._network, self._environment = network, dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._first = 0  # id of the machine's first process

    def start(self, *command: str) -> None:
        """Run the command there, again whenever it ends. Returns when the machine has its network."""
        self.folder.mkdir(parents=True)
        unshare = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", "sh", "-c", INIT, "sh"]
        with (self.folder / "machine.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*unshare, self.address, str(self.folder), str(ROOT), self._place_of_checkout(), *command],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._first = _child_of(self._process.pid)
        self._network.connect(self.name, self._first)
        _until((self.folder / UP).exists, f"the machine {self.name} has no network")

    def _place_of_checkout(self) -> str:
        """Where in its folder the machine needs the checkout: if it lies in /tmp, the machine's own /tmp hides it."""
        tmp = Path("/tmp")
        return str(self.folder / ROOT.relative_to(tmp)) if ROOT.is_relative_to(tmp) else ""

    def run(self, command: Sequence[str]) -> str:
        """Run a command on this machine to its end; returns its output. Raises CalledProcessError."""
        enter = ["nsenter", "--target", str(self._first), *NAMESPACES, "--"]
        done = subprocess.run([*enter, *command], env=self._environment, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout

    def cut(self) -> None:
        self._network.cut(self.name)

    def mend(self) -> None:
        self._network.mend(self.name)

    def end(self) -> None:
        """Kill all processes of the machine."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first, signal.SIGKILL)
            self._process.wait()

    def logs(self) -> str:
        """All that processes of Ray, Serve and Orca have logged on this machine."""
        files = sorted(self.folder.glob("ray/session_2*/logs/**/*"))
        return "\n".join(file.read_text(errors="replace") for file in files if file.is_file())


def _child_of(pid: int) -> int:
    """The child of `unshare`, which has the new namespaces."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    _until(lambda: bool(children.read_text().split()), f"unshare (process {pid}) has started nothing")
    return int(children.read_text().split()[0])


def _until(condition: Callable[[], bool], otherwise: str) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise} after {TIMEOUT:g} s")
        time.sleep(0.01)
