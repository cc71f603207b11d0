"""Certificates for servers with TLS, made by openssl."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.pool.server.binaries import ServerBinary

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


@dataclass(frozen=True, slots=True)
class Certificates:
    """The certificate of an authority, and one that it signed, with its key; files of PEM."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def make(cls, folder: Path, hosts: Sequence[str]) -> Certificates:
        """Both are new. The second one is valid for these addresses."""
        authority, authority_key, certificate, key = (
            folder / name for name in ("ca.pem", "ca.key", "own.pem", "own.key")
        )
        _openssl("req", "-x509", *_KEY, "-subj", "/CN=authority", "-keyout", authority_key, "-out", authority)
        names = "subjectAltName=" + ",".join(f"IP:{host}" for host in hosts)
        signer = ("-CA", authority, "-CAkey", authority_key)
        _openssl(
            "req", "-x509", *_KEY, "-subj", "/CN=own", "-addext", names, *signer, "-keyout", key, "-out", certificate
        )
        return cls(authority, certificate, key)

    def of_server(self, port: int) -> dict[str, str]:
        """The options of a server or a Sentinel that listens on `port` with TLS only, and uses it for all it calls."""
        return {
            "port": "0",
            "tls-port": str(port),
            "tls-ca-cert-file": str(self.authority),
            "tls-cert-file": str(self.certificate),
            "tls-key-file": str(self.key),
            "tls-replication": "yes",
        }

    def of_clients(self) -> dict[str, str]:
        """The options of redis-py and of `redis_url` for a client that shows the certificate."""
        return {
            "ssl_ca_certs": str(self.authority),
            "ssl_certfile": str(self.certificate),
            "ssl_keyfile": str(self.key),
        }


def speaks_tls(binary: ServerBinary) -> bool:
    """Whether the server was built with TLS. Only then it misses an authority and a certificate."""
    command = [str(binary.path), "--port", "0", "--tls-port", "1"]
    started = subprocess.run(command, capture_output=True, text=True, timeout=10)
    return "Failed to configure TLS" in started.stdout + started.stderr


def _openssl(*args: str | Path) -> None:
    subprocess.run(["openssl", *(str(arg) for arg in args)], check=True, capture_output=True)
