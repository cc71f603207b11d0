"""TLS at HAProxy, with a configuration that Serve wrote and `orca-haproxy` patched."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from haproxy_process import serve_config

from actors.cluster.environment import prepared_environment
from actors.haproxy import BINARY_PATH
from load.server import free_port
from services.settings.settings import Settings
from tests.services.settings.test_exposure import self_signed


@pytest.mark.parametrize(
    ("in_one", "host", "bound"), [(True, "127.0.0.1", "127.0.0.1:{}"), (False, "[::0]", "[::]:{} v4v6")]
)
def test_haproxy_accepts_a_certificate(tmp_path: Path, in_one: bool, host: str, bound: str) -> None:
    port = free_port()
    serve_config(tmp_path, port, None, 2000)
    certificate, key = self_signed(tmp_path)
    if in_one:
        Path(certificate).write_text(Path(certificate).read_text() + Path(key).read_text())
    settings = Settings(host=host, ssl_certfile=certificate, ssl_keyfile="" if in_one else key)
    environment, guard = prepared_environment(tmp_path, settings, 2000)
    configuration = tmp_path / "haproxy.cfg"
    with guard:
        command = [environment[BINARY_PATH], "-c", "-f", str(configuration)]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"bind {bound.format(port)} ssl crt" in configuration.read_text()
    assert configuration.with_name("certificate.pem").stat().st_mode & 0o777 == 0o600


def test_no_setting_is_in_the_environment_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_API_KEY", "hidden-word")
    environment, guard = prepared_environment(tmp_path, Settings(), 2000)
    guard.close()
    assert not [name for name in environment if name.startswith("ORCA_")]
