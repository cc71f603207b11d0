"""Network namespaces on a bridge of this machine, each with an address and files of its own in /etc. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BRIDGE, SUBNET, NODE = "orca-pods", "10.231.7", "10.231.7.1"
TOOLS = ("ip", "iptables-restore", "unshare", "setpriv", "mount")


def missing() -> str:
    """Why pods cannot run here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    tried = subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], capture_output=True, text=True)
    if tried.returncode:
        return f"no bridge can be made: {tried.stderr.strip()}"
    run("ip", "link", "delete", BRIDGE)
    return ""


def run(*command: str | Path, **options: Any) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
    return done.stdout


class Namespace:
    """One namespace, with a link to the bridge."""

    def __init__(self, name: str, address: str) -> None:
        self._name, self._link, self._address = f"orca-{name}", f"op-{name}", address
        self.etc = Path("/etc/netns", self._name)  # `ip netns exec` mounts its files over those of /etc
        self.prefix = ("ip", "netns", "exec", self._name)  # of a command that is to run in it

    def create(self) -> None:
        self.etc.mkdir(parents=True)
        (self.etc / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # refuses at once what is not in hosts
        run("ip", "netns", "add", self._name)
        run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._name)
        run("ip", "link", "set", self._link, "master", BRIDGE, "up")
        self.enter("ip", "address", "add", f"{self._address}/24", "dev", "eth0")
        self.enter("ip", "link", "set", "eth0", "up")
        self.enter("ip", "link", "set", "lo", "up")
        self.enter("ip", "route", "add", "default", "via", NODE)  # by which Ray finds its own address

    def delete(self) -> None:
        """Take it down, with all processes in it."""
        for pid in run("ip", "netns", "pids", self._name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        run("ip", "link", "delete", self._link)
        run("ip", "netns", "delete", self._name)
        shutil.rmtree(self.etc, ignore_errors=True)

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """All packets from and to it are lost meanwhile, without a sign of it to either side."""
        run("ip", "link", "set", self._link, "nomaster")
        yield
        run("ip", "link", "set", self._link, "master", BRIDGE)

    def enter(self, *command: str, **options: Any) -> str:
        """The output of a command of this machine, run in it as root."""
        return run(*self.prefix, *command, **options)
