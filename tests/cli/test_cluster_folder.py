"""The folder of a cluster's files, in which Ray and HAProxy have sockets."""

from __future__ import annotations

import tempfile

import pytest

from actors.cluster.environment import haproxy_environment
from cli.supervisor import _make_folder

LONGEST = 97  # characters of a socket's path in HAProxy's configuration
NODE_ID = 56  # characters; Serve puts HAProxy's files into a folder that is named so


@pytest.mark.parametrize("temp", ["/tmp", "/var/tmp"])
def test_the_paths_of_sockets_are_short_enough_wherever_temporary_files_go(
    temp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: temp)
    folder = _make_folder()
    try:
        paths = [path for name, path in haproxy_environment(folder).items() if name.endswith("SOCKET_PATH")]
    finally:
        folder.rmdir()
    assert len(paths) == 2
    assert max(map(len, paths)) + NODE_ID + len("/") <= LONGEST
