"""A relay between a browser and gateways, whose connections a test can break."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from urllib.parse import urlsplit


class Relay:
    """Listens at `url`. Each new connection goes to the next gateway of `urls` after a `cut`."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._targets = [(urlsplit(url).hostname, urlsplit(url).port) for url in urls]
        self._cuts = 0
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections with a reset."""
        with self._lock:
            self._cuts += 1
            for end in self._open:
                _reset(end)
            self._open.clear()

    def close(self) -> None:
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                with self._lock:
                    server = socket.create_connection(self._targets[self._cuts % len(self._targets)])
                    self._open += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=_forward, args=(source, target), daemon=True).start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
        end.close()
