"""A network of machines in this process's network namespace: a bridge, and links to machines, which can be cut."""

from __future__ import annotations

import subprocess

BRIDGE = "nodes0"
HERE = "10.77.0.1"  # the address of this process: of the pool's server and the clients
PREFIX = 24
FIRST = 11  # the last number of the first machine's address


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
