"""Who can reach a server, and that an open one is meant."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from services.config import Settings
from services.errors import UsageError
from services.exposure import check, is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LocalHost.", "a.localhost"])
def test_this_machine_alone(host: str) -> None:
    assert is_loopback(host)
    check(Settings(host=host))


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "127.0.0.1.example"])
def test_others_need_keys_or_a_word(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(UsageError, match=r"without an API key; set .*allow_no_keys"):
        check(Settings(host=host))
    check(Settings(host=host, api_key=["k"]))
    check(Settings(host=host, allow_no_keys=True))


def self_signed(folder: Path) -> tuple[str, str]:
    """Files of a certificate for localhost and its key."""
    certificate, key = str(folder / "certificate.pem"), str(folder / "key.pem")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run([*new, "-keyout", key, "-out", certificate, *names], check=True, capture_output=True)
    return certificate, key


def test_files_of_tls_are_read_before_the_start(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    check(Settings(ssl_certfile=certificate, ssl_keyfile=key))
    both = tmp_path / "both.pem"
    both.write_text(Path(certificate).read_text() + Path(key).read_text())
    check(Settings(ssl_certfile=str(both)))
    with pytest.raises(UsageError, match=r"ssl_keyfile=none: No such file"):
        check(Settings(ssl_certfile=certificate, ssl_keyfile="none"))
    with pytest.raises(UsageError, match="are not a certificate and its key"):
        check(Settings(ssl_certfile=certificate, ssl_keyfile=certificate))
    with pytest.raises(UsageError, match="are not a certificate and its key"):
        check(Settings(ssl_certfile=certificate))
