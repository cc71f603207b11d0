"""A Docker daemon: the machine's, or one of our own in namespaces that end with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

CLONE_NEWNET = 0x40000000  # linux/sched.h
START = 60.0  # seconds for the daemon to answer
# the daemon ends with this process, whatever ends that
NAMESPACES = ("setpriv", "--pdeathsig=KILL")
NAMESPACES += ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=SIGTERM")
NEEDED = ("setpriv", "unshare", "dockerd", "containerd", "runc", "iptables", "podman", "mmdebstrap")


@dataclass(frozen=True, slots=True)
class Daemon:
    """`own`: the process whose network the containers' ports are published in; None: this machine's network, and the
    daemon can pull images."""

    host: str
    own: int | None

    def run(self, *command: str, **variables: str) -> str:
        """The output of a command that talks to the daemon. Fails with all that it said."""
        done = subprocess.run(
            command,
            env=self.environment(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}"
        return done.stdout

    def environment(self, variables: dict[str, str]) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("ORCA_")}
        return clean | {"DOCKER_HOST": self.host} | variables

    def enter(self) -> None:
        """Put the calling thread, and no other, into the network of the published ports."""
        if self.own is None:
            return
        with open(f"/proc/{self.own}/ns/net") as network:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.setns(network.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long something took."""
    began = time.monotonic()
    yield
    print(f"\n{what}: {time.monotonic() - began:.0f} s", flush=True)


def compose_command() -> Sequence[str]:
    """Compose, as the plugin of Docker or as a program. Skips the test without one."""
    if shutil.which("docker") and _succeeds("docker", "compose", "version"):
        return ("docker", "compose")
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    pytest.skip("neither `docker compose` nor docker-compose is installed")


@contextlib.contextmanager
def running() -> Iterator[Daemon]:
    """The machine's daemon if one answers, else one of our own. Skips the test where there is none to be had."""
    if shutil.which("docker") and _succeeds("docker", "info"):
        yield Daemon(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"), None)
        return
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"no Docker daemon answers, and to start one this needs root and {', '.join(missing or NEEDED)}")
    with (
        tempfile.TemporaryDirectory(prefix="orca-docker-", ignore_cleanup_errors=True) as folder,
        _own(Path(folder)) as one,
    ):
        yield one


@contextlib.contextmanager
def _own(folder: Path) -> Iterator[Daemon]:
    """A daemon with all its files in `folder`, in network, mount and process namespaces of its own: its bridges, packet
    filters, mounts and containers end with it."""
    host = f"unix://{folder}/docker.sock"
    options = [f"--host={host}", f"--data-root={folder}/data", f"--exec-root={folder}/exec"]
    options += [f"--pidfile={folder}/docker.pid", "--cgroup-parent=/orca-cluster-test"]
    script = 'ip link set lo up && exec dockerd "$@"'
    with (folder / "dockerd.log").open("wb") as log:
        outer = subprocess.Popen(
            [*NAMESPACES, "sh", "-c", script, "dockerd", *options],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        inner = _until_ready(outer, host, folder / "dockerd.log")
        yield Daemon(host, inner)
        os.kill(inner, signal.SIGTERM)  # it stops its containers
        outer.wait(START)
    finally:
        outer.kill()  # the kernel ends all processes of the namespace
        outer.wait()
        for group in Path("/sys/fs/cgroup").glob("*/orca-cluster-test"):
            for each in sorted((group, *group.rglob("*/")), reverse=True):
                with contextlib.suppress(OSError):
                    each.rmdir()


def _until_ready(outer: subprocess.Popen[bytes], host: str, log: Path) -> int:
    """The daemon's process, once it answers."""
    end = time.monotonic() + START
    while not _succeeds("docker", "--host", host, "info"):
        assert outer.poll() is None, f"dockerd ended:\n{log.read_text()}"
        assert time.monotonic() < end, f"dockerd does not answer:\n{log.read_text()}"
        time.sleep(0.2)
    return int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0
