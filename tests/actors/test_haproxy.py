"""HAProxy as `orca-haproxy` starts it: its answers when no gateway serves a client, and when it closes a connection."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from haproxy_process import backend, running

from actors import haproxy
from actors.cluster.processes import ports_of, processes_of
from actors.front_door import connection_limits
from actors.haproxy import MARK
from services.settings.settings import Settings

# without `close`, HAProxy may send the next request over this connection, which the backend closes
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def unserved(answer: httpx.Response) -> None:
    """Check an answer after which the official clients try again."""
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) == haproxy.RETRY_AFTER
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "server_error"


def ask(port: int) -> httpx.Response:
    return httpx.post(f"http://127.0.0.1:{port}/v1/completions", json={}, timeout=5)


def closed(connection: socket.socket) -> bytes:
    """All bytes until the other side closes the connection."""
    connection.settimeout(10)
    parts: list[bytes] = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def connected(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), source_address=(source, 0))


def answer_to(port: int, source: str) -> bytes:
    with connected(port, source) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        return closed(connection)
    return b""


def test_before_serve_knows_a_route_it_is_503_not_404(tmp_path: Path) -> None:
    with running(tmp_path) as port:
        unserved(ask(port))


def test_with_all_gateways_dead_it_is_503_not_the_404_of_serves_own_proxy(tmp_path: Path) -> None:
    with backend(lambda connection, _: None) as place, running(tmp_path, place) as port:
        unserved(ask(port))  # the backend closes without an answer


def test_a_gateway_that_answers_health_checks_slowly_does_not_count_as_dead(tmp_path: Path) -> None:
    slow, checks = threading.Event(), []

    def checked() -> None:
        if slow.is_set():
            checks.append(True)
            time.sleep(0.3)

    with (
        backend(lambda connection, _: connection.sendall(EMPTY), checked) as place,
        running(tmp_path, place) as port,
    ):
        slow.set()
        while len(checks) < 4:  # two failed checks in a row would mark it as down
            time.sleep(0.01)
        assert ask(port).status_code == 200


def test_the_kernel_probes_the_node_of_a_gateway_that_is_silent(tmp_path: Path) -> None:
    """A node that is cut off closes no connection: without probes, its streams would stand still for ever."""
    timers: list[str] = []

    def look(connection: socket.socket, _: str) -> None:
        ends = f":{connection.getpeername()[1]:04X}", f":{connection.getsockname()[1]:04X}"
        for row in Path("/proc/net/tcp").read_text().splitlines():
            _, local, remote, _, _, timer, *_ = row.split()
            if local.endswith(ends[0]) and remote.endswith(ends[1]):
                timers.append(timer.partition(":")[0])
        connection.sendall(EMPTY)

    with backend(look) as place, running(tmp_path, place) as port:
        ask(port)
    assert timers == ["02"]  # that of keepalive


def test_half_a_request_is_answered_408(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy, "HEAD_TIMEOUT", 1)
    with running(tmp_path, changed=True) as port, socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n")
        assert closed(half).startswith(b"HTTP/1.1 408 ")


def test_above_the_bound_clients_are_refused_at_once_but_probes_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(haproxy, "REFUSED", 20)
    with (
        backend(lambda connection, _: connection.sendall(EMPTY)) as place,
        running(tmp_path, place, most=60, changed=True) as port,
        contextlib.ExitStack() as stack,
    ):
        assert ask(port).status_code == 200
        for number in range(45):
            stack.enter_context(connected(port, f"127.0.0.{2 + number % 3}"))
        unserved(ask(port))
        assert ask(port).headers["connection"] == "close"
        assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
        beyond = [stack.enter_context(connected(port, f"127.0.0.{2 + number % 3}")) for number in range(30)]
        assert closed(beyond[-1]) == b""  # it does not wait in the kernel's queue


def test_one_address_does_not_get_all_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy, "REFUSED", 20)
    monkeypatch.setattr(haproxy, "HEAD_TIMEOUT", 100)
    with (
        backend(lambda connection, _: connection.sendall(EMPTY)) as place,
        running(tmp_path, place, most=60, changed=True) as port,
        contextlib.ExitStack() as stack,
    ):
        held = [stack.enter_context(connected(port, "127.0.0.2")) for _ in range(60)]
        assert closed(held[-1]) == b""
        assert ask(port).status_code == 200
        with connected(port, "127.0.0.2") as own:
            assert closed(own) == b""
        for connection in held[32:]:
            connection.close()
        while b" 503 " not in answer_to(port, "127.0.0.2"):  # HAProxy sees the closed connections one after the other
            time.sleep(0.05)


def test_a_request_id_that_is_not_text_is_removed(tmp_path: Path) -> None:
    """Serve's replicas fail on such an id, with an answer that is not ours."""
    heads: list[bytes] = []

    def keep(connection: socket.socket, _: str) -> None:
        heads.append(connection.recv(1 << 16))
        connection.sendall(EMPTY)

    with backend(keep) as place, running(tmp_path, place) as port:
        for name in (b"a b", b"\xff"):
            with connected(port, "127.0.0.1") as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\nX-Request-Id: " + name + b"\r\n\r\n")
                assert b" 200 " in closed(connection)
    assert [b"request-id" in head for head in heads] == [True, False]


def test_a_connection_takes_one_request_at_a_time(tmp_path: Path) -> None:
    """With HTTP/2, 100 requests could share a connection, and the bound on connections would not limit requests."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    with running(tmp_path) as port, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(preface)
        connection.shutdown(socket.SHUT_WR)
        assert closed(connection).startswith(b"HTTP/1.1 400 ")


def test_an_answer_may_take_longer_than_a_client_may_be_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy, "CLIENT_TIMEOUT", 1)

    def late(connection: socket.socket, _: str) -> None:
        time.sleep(1.5)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        time.sleep(1.5)
        connection.sendall(b"ok")

    with backend(late) as place, running(tmp_path, place, changed=True) as port:
        assert httpx.post(f"http://127.0.0.1:{port}/", timeout=9).text == "ok"


def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy, "CLIENT_TIMEOUT", 1)
    cut = []

    def endless(connection: socket.socket, _: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                connection.sendall(bytes(1 << 16))
        finally:
            cut.append(True)

    with (
        backend(endless) as place,
        running(tmp_path, place, changed=True) as port,
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        while not cut:
            time.sleep(0.01)


def test_a_body_that_does_not_arrive_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy, "CLIENT_TIMEOUT", 1)
    with (
        backend(lambda connection, _: time.sleep(9)) as place,
        running(tmp_path, place, changed=True) as port,
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf")
        answer = closed(client)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"type": "invalid_request_error"' in answer


def test_a_client_that_closes_its_side_is_gone_and_told_so(tmp_path: Path) -> None:
    silent = backend(lambda connection, _: time.sleep(9))
    with silent as place, running(tmp_path, place, changed=True) as port, connected(port, "127.0.0.1") as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        assert b"closed its side of the connection" in closed(client)


def test_its_environment_has_the_mark_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, str(tmp_path / "haproxy.cfg"))
    monkeypatch.setenv("CLOUD_TOKEN", "a-word")
    with running(tmp_path) as port:
        (pid,) = {pid for pid in processes_of(tmp_path) if any(one.port == port for one in ports_of([pid]))}
        assert b"a-word" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_statistics_are_for_this_machine_and_commands_for_this_user(tmp_path: Path) -> None:
    with running(tmp_path):
        binds = [line.split()[1] for line in config_in(tmp_path).splitlines() if line.split()[:1] == ["bind"]]
        assert {bind.split(":")[0] for bind in binds} == {"127.0.0.1"}
        assert (tmp_path / "admin.sock").stat().st_mode & 0o777 == 0o600


ADDRESSES = ["127.0.0.1", "127.0.0.2", "::1"]  # all are addresses of this machine


@pytest.mark.parametrize(
    ("serves", "host", "expected"),
    [
        ("0.0.0.0", "", ADDRESSES[:2]),
        ("127.0.0.1", "", ADDRESSES[:1]),
        ("127.0.0.1", "0.0.0.0", ADDRESSES[:2]),
        ("127.0.0.1", "127.0.0.2", ADDRESSES[1:2]),
        ("127.0.0.1", "::1", ADDRESSES[2:]),
        ("127.0.0.1", "::", ADDRESSES),
    ],
)
def test_it_listens_on_the_address_that_it_is_given_and_on_no_other(
    tmp_path: Path, serves: str, host: str, expected: list[str]
) -> None:
    if ":" in host and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with running(tmp_path, serves=serves, host=host) as port:
        found = [address for address in ADDRESSES if answers(address, port)]
        stats = re.findall(
            r"^(?:frontend prometheus|listen stats)\n.* bind .*:(\d+)$", config_in(tmp_path), re.MULTILINE
        )
        assert [[a for a in ADDRESSES if answers(a, int(one))] for one in stats] == [ADDRESSES[:1]] * 2
    assert found == expected


def answers(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=5):
        return True
    return False


def config_in(folder: Path) -> str:
    return (folder / "haproxy.cfg").read_text()


@pytest.mark.parametrize("files", [4000, 10_000])
def test_it_starts_with_the_open_files_for_which_its_bound_is_computed(tmp_path: Path, files: int) -> None:
    limits = connection_limits(Settings(), files)
    with running(tmp_path, most=limits.maxconn, files=files) as port:
        unserved(ask(port))


def test_a_bound_is_lowered_to_the_open_files(tmp_path: Path) -> None:
    with running(tmp_path, most=20_000, files=3000) as port:
        unserved(ask(port))


def test_another_template_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no line like"):
        haproxy.patch_config("global\n    maxconn 4096\ndefaults\n", tmp_path)


def test_a_long_token_passes(tmp_path: Path) -> None:
    with backend(lambda connection, _: connection.sendall(EMPTY)) as place, running(tmp_path, place) as port:
        headers = {"Authorization": "Bearer " + "k" * (haproxy.LONGEST_HEAD - 4096)}
        assert httpx.get(f"http://127.0.0.1:{port}/v1/models", headers=headers, timeout=5).status_code == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nno colon", 400),
        ("GET /modèles HTTP/1.1\r\nHost: a".encode(), 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"k" * (haproxy.LONGEST_HEAD + 4096), 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked", 422),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", 400),
    ],
)
def test_a_head_that_it_cannot_read_has_its_own_answer_and_the_connection_ends(
    tmp_path: Path, head: bytes, status: int
) -> None:
    """The text is HAProxy's, which its parser takes from no file."""
    with running(tmp_path) as port, socket.create_connection(("127.0.0.1", port)) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(head + b"\r\n\r\n")
        assert closed(connection).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("begun", [False, True])
def test_a_half_closed_client_counts_as_gone(tmp_path: Path, begun: bool) -> None:
    """A client that has closed its connection looks the same, and its request would be computed for nobody."""
    came, gone = threading.Event(), threading.Event()

    def hold(connection: socket.socket, _: str) -> None:
        if begun:
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nheld\r\n")
        came.set()
        with contextlib.suppress(OSError):
            while connection.recv(65536):
                pass
        gone.set()

    with backend(hold) as place, running(tmp_path, place) as port, connected(port, "127.0.0.1") as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
        assert came.wait(10)
        if begun:
            assert b"held" in connection.recv(65536)
        connection.shutdown(socket.SHUT_WR)
        answer = closed(connection)
        assert gone.wait(10)
    assert answer.startswith(b"HTTP/1.1 400 ") != begun
    assert (b"closed its side" in answer) != begun
