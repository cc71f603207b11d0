"""The process that holds Ray for `orca serve`: `python -m actors.cluster_process CHANNEL FOLDER`.

CHANNEL is an inherited socket. It gets the settings, then, when they are known, the pool's URL and the pinned model;
it says how far it came. It lives on when the other end is killed: the cluster serves, and the next `orca serve`
replaces it. SIGTERM: drain and end.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from pydantic import SecretStr

from services.errors import OrcaError
from services.settings.sources import load


class Channel:
    """JSON values over a socket, one a line."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        self._socket.set_inheritable(False)  # its end must tell of this process alone
        self._lines = self._socket.makefile("r")

    def receive(self) -> Any:
        """The next value; ends the program where there is none: nobody waits for this cluster yet."""
        line = self._lines.readline()
        if not line:
            sys.exit("the supervisor is gone")
        return json.loads(line)

    def say(self, **said: Any) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            self._socket.sendall(json.dumps(said).encode() + b"\n")


def main() -> None:
    channel, folder = Channel(int(sys.argv[1])), Path(sys.argv[2])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            _serve(channel, folder)
        except Exception as error:
            channel.say(error=str(error) if isinstance(error, OrcaError) else repr(error))
            raise


def _serve(channel: Channel, folder: Path) -> NoReturn:
    from actors import cluster  # Ray: a second, in which the supervisor works too

    settings = load(**channel.receive())
    try:
        cluster.start(settings, folder)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray put its own
        channel.say(at="ray")
        said = channel.receive()
        told = {"redis_url": SecretStr(said["redis_url"]), "model": said["model"], "durability": "everysec"}
        settings = settings.model_copy(update=told)
        cluster.deploy(settings, folder)
        channel.say(at="serve")
        while True:
            signal.pause()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        cluster.stop(settings, folder)


if __name__ == "__main__":
    main()
