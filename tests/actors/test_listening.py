"""Ports on which processes listen, as the kernel tells them."""

from __future__ import annotations

import os
import socket

import pytest

from actors.listening import Port, ports_of, told


@pytest.mark.parametrize(
    ("family", "host", "shown", "is_open"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1", False),
        (socket.AF_INET, "0.0.0.0", "0.0.0.0", True),
        (socket.AF_INET6, "::1", "::1", False),
        (socket.AF_INET6, "::", "::", True),
        (socket.AF_INET6, "::ffff:127.0.0.1", "127.0.0.1", False),
    ],
)
def test_a_port_that_listens(family: socket.AddressFamily, host: str, shown: str, is_open: bool) -> None:
    with socket.socket(family) as listening, socket.socket(family) as bound:
        listening.bind((host, 0))
        bound.bind((host, 0))
        port = listening.getsockname()[1]
        before = ports_of([os.getpid()])
        listening.listen()
        (found,) = set(ports_of([os.getpid()])) - set(before)
    assert (found.host, found.port, found.is_open) == (shown, port, is_open)


def test_one_line_tells_what_others_reach() -> None:
    inner, outer = Port("127.0.0.1", 1, "a"), Port("0.0.0.0", 8000, "haproxy")
    assert told([inner]).startswith("other machines reach: nothing; this machine reaches 1 port")
    assert "other machines reach: 0.0.0.0:8000 (haproxy);" in told([inner, outer])
    assert "other machines reach: [::]:8000 (haproxy);" in told([inner, Port("::", 8000, "haproxy")])
