"""Servers of a pool that fail over: a master and two replicas, each with a Sentinel beside it.

Each pair has a loopback address of its own, from which it also connects to the others, so that packet filters can cut
it off.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from load.server import free_port
from services.pool.server.binaries import ServerBinary

PATIENT = 60_000  # milliseconds: on a busy machine, another master could be chosen before all know each other
MASTER = "pool"  # the name by which the Sentinels know it
FAILOVER_TIMEOUT = 2000  # ms; after an election without a winner, the next one begins after twice that time
START = 30.0  # seconds for anything to start
WRITTEN = {
    "appendonly": "yes",
    "save": "",
    "aof-use-rdb-preamble": "no",  # a rewritten file is read as commands
    "auto-aof-rewrite-percentage": "0",
    "maxmemory-policy": "noeviction",
    "protected-mode": "no",
    "repl-diskless-sync-delay": "0",
    "repl-backlog-size": "64mb",
    "repl-ping-replica-period": "1",
    "repl-timeout": "5",
    "enable-debug-command": "local",
}


def own_addresses(count: int) -> tuple[str, ...]:
    """Loopback addresses of this process, which servers of other processes do not have."""
    pid = os.getpid()
    return tuple(f"127.{1 + pid // 250 % 250}.{pid % 250}.{number}" for number in range(1, count + 1))


@dataclass(slots=True)
class Server:
    """A server and its Sentinel, as processes."""

    host: str
    port: int
    sentinel_port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    sentinel: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


@dataclass(slots=True)
class Sentinels:
    """The servers and Sentinels on `folder`, from `start` to `stop`.

    `password` is that of the servers, `sentinel_password` that of the Sentinels. `down_after`: seconds without an
    answer after which a Sentinel takes the master for dead. `options`: further ones of the servers.
    """

    folder: Path
    binary: ServerBinary
    down_after: float = 2.0
    password: str = ""
    sentinel_password: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    hosts: tuple[str, ...] = field(default_factory=lambda: own_addresses(3))
    servers: list[Server] = field(default_factory=list)
    scheme: ClassVar[str] = "redis"

    @property
    def url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        hosts = ",".join(f"{server.host}:{server.sentinel_port}" for server in self.servers)
        options = self.of_clients()
        if self.sentinel_password:
            options["sentinel_password"] = self.sentinel_password
        query = f"?{urlencode(options)}" if options else ""
        return f"{self.scheme}+sentinel://{login}{hosts}/{MASTER}{query}"

    def start(self) -> None:
        """Start all; returns when the replicas follow the first server and the Sentinels know all."""
        try:
            for host in self.hosts:
                folder = self.folder / host
                folder.mkdir(parents=True)
                self.servers.append(Server(host, free_port(), free_port(), folder))
            for server in self.servers:
                self.start_server(server, None if server is self.servers[0] else self.servers[0])
            self.wait_until_online(self.servers[0], len(self.servers) - 1)
            for server in self.servers:
                self._start_sentinel(server)
            _until(lambda: all(self._knows_all(server) for server in self.servers), "the Sentinels know all servers")
            for server in self.servers:
                soon = str(round(self.down_after * 1000))
                self._ask_sentinel(server, "SENTINEL", "SET", MASTER, "down-after-milliseconds", soon)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill all processes."""
        for server in self.servers:
            for process in (server.sentinel, server.process):
                if process is not None:
                    process.kill()
                    process.send_signal(signal.SIGCONT)
                    process.wait()

    def start_server(self, server: Server, master: Server | None = None) -> None:
        """Start it on its folder, as a replica of `master`; without one it believes to be the master."""
        options = WRITTEN | {"bind": server.host, "dir": str(server.folder)} | self.listening(server.port)
        options |= {"logfile": str(server.folder / "server.log")}
        if self.binary.version >= (7,):
            options |= {"bind-source-addr": server.host, "aof-timestamp-enabled": "yes"}
        else:
            del options["enable-debug-command"]
        if self.password:
            options |= {"requirepass": self.password, "masterauth": self.password}
        if master is not None:
            options |= {"replicaof": f"{master.host} {master.port}"}
        options |= self.options
        lines = [f'{name} "{value}"' if name != "replicaof" else f"{name} {value}" for name, value in options.items()]
        path = server.folder / "server.conf"
        path.write_text("\n".join(lines) + "\n")
        server.process = self._spawn(server, path)
        _until(lambda: self.ask(server, "PING") == b"PONG", f"{server.host} answers")

    def _start_sentinel(self, server: Server) -> None:
        first = self.servers[0]
        lines = [
            f"bind {server.host}",
            *(f"{name} {value}" for name, value in self.listening(server.sentinel_port).items()),
            f"dir {server.folder}",
            f"logfile {server.folder}/sentinel.log",
            "protected-mode no",
            f"sentinel monitor {MASTER} {first.host} {first.port} {len(self.servers) // 2 + 1}",
            f"sentinel down-after-milliseconds {MASTER} {PATIENT}",
            f"sentinel failover-timeout {MASTER} {FAILOVER_TIMEOUT}",
        ]
        if self.binary.version >= (7,):
            lines.append(f"bind-source-addr {server.host}")
        if self.password:
            lines.append(f"sentinel auth-pass {MASTER} {self.password}")
        if self.sentinel_password:
            lines += [f"requirepass {self.sentinel_password}", f"sentinel sentinel-pass {self.sentinel_password}"]
        path = server.folder / "sentinel.conf"
        path.write_text("\n".join(lines) + "\n")
        server.sentinel = self._spawn(server, path, "--sentinel")

    def listening(self, port: int) -> dict[str, str]:
        """The options of a server or a Sentinel that listens on `port`."""
        return {"port": str(port)}

    def of_clients(self) -> dict[str, str]:
        """The options of clients, of redis-py and of `redis_url`."""
        return {}

    def _spawn(self, server: Server, config: Path, *more: str) -> subprocess.Popen[bytes]:
        command = [str(self.binary.path), str(config), *more]
        return subprocess.Popen(command, cwd=server.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    # --- what they say ---

    def ask(self, server: Server, *command: str) -> Any:
        """A server's reply; None if it does not answer or refuses."""
        return self._ask(server.host, server.port, self.password, *command)

    def master(self) -> Server:
        """The server that most of the Sentinels which answer take for the master."""
        named = [self._ask_sentinel(server, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER) for server in self.servers]
        ports = [int(address[1]) for address in named if address]
        assert ports, "no Sentinel answers"
        port = max(set(ports), key=ports.count)
        return next(server for server in self.servers if server.port == port)

    def replicas_online(self, master: Server) -> int:
        said = self.ask(master, "INFO", "replication") or b""
        return bytes(said).count(b"state=online")

    def wait_until_online(self, master: Server, replicas: int) -> None:
        """Return when so many replicas follow it, and their files are written anew."""

        def whole() -> bool:
            if self.replicas_online(master) < replicas:
                return False
            said = (self.ask(server, "INFO", "persistence") or b"" for server in self.servers)
            return not any(b"aof_rewrite_in_progress:1" in one or b"aof_rewrite_scheduled:1" in one for one in said)

        _until(whole, f"{replicas} replicas follow {master.host}")

    def wait_until_written(self) -> None:
        """Return when the files of the servers that answer have all that was answered. While a disk is busy with an
        fsync, a server keeps what it would write for up to two seconds."""

        def empty() -> bool:
            said = (self.ask(server, "INFO", "persistence") or b"" for server in self.servers)
            return not any(re.search(rb"aof_buffer_length:[1-9]", one) for one in said)

        _until(empty, "the files have all that was answered")

    def fail_over(self) -> None:
        """Tell a Sentinel to make a replica the master."""
        replies = (self._ask_sentinel(server, "SENTINEL", "FAILOVER", MASTER) for server in self.servers)
        assert b"OK" in replies, "no Sentinel fails over"

    def wait_for_master(self, other_than: Server, seconds: float = START) -> Server:
        """The next master, once all Sentinels that answer agree and it takes writes."""

        def serves() -> bool:
            master = self.master()
            return master is not other_than and b"role:master" in bytes(self.ask(master, "INFO", "replication") or b"")

        _until(serves, f"another server than {other_than.host} is the master", seconds)
        return self.master()

    def _ask_sentinel(self, server: Server, *command: str) -> Any:
        return self._ask(server.host, server.sentinel_port, self.sentinel_password, *command)

    def _knows_all(self, server: Server) -> bool:
        said = self._ask_sentinel(server, "SENTINEL", "MASTER", MASTER)
        found = dict(zip(said[::2], said[1::2], strict=True)) if said else {}
        others = str(len(self.servers) - 1).encode()
        return found.get(b"num-slaves") == found.get(b"num-other-sentinels") == others

    def _ask(self, host: str, port: int, password: str, *command: str) -> Any:
        options: dict[str, Any] = {"ssl": self.scheme == "rediss", **self.of_clients()}
        options |= {"password": password or None, "socket_timeout": 1, "protocol": 2, "retry": Retry(NoBackoff(), 0)}
        try:
            with redis.Redis(host, port, **options) as client:
                client.response_callbacks.clear()
                return client.execute_command(*command)
        except (redis.RedisError, OSError):
            return None


def _until(happened: Callable[[], bool], what: str, seconds: float = START) -> None:
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError(f"after {seconds:.0f} s it is not so that {what}")
        time.sleep(0.02)
