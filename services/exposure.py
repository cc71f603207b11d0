"""Who can reach the API: this machine alone, or others too."""

from __future__ import annotations

import ssl
from pathlib import Path

from services.addresses import parsed
from services.config import Settings
from services.errors import UsageError


def is_loopback(host: str) -> bool:
    """Whether an address or a name, without a port, is this machine's own and nobody else's."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = parsed(name)
    return bool(address and address.is_loopback)


def check(settings: Settings) -> None:
    """Raises UsageError where anybody could use the server and nobody said so, and for TLS files that are wrong."""
    if not (is_loopback(settings.host) or settings.tenants or settings.allow_no_keys):
        raise UsageError(
            f"host={settings.host}: whoever reaches this address could use the server without an API key; "
            "set api_keys_file, api_keys or api_key, or allow_no_keys"
        )
    if settings.ssl_certfile:
        _check_certificate(settings)


def _check_certificate(settings: Settings) -> None:
    for name in ("ssl_certfile", "ssl_keyfile"):
        try:
            Path(getattr(settings, name) or settings.ssl_certfile).read_bytes()
        except OSError as error:
            raise UsageError(f"{name}={getattr(settings, name)}: {error.strerror}") from None
    try:
        # an empty password: an encrypted key would be asked for at the terminal
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            settings.ssl_certfile, settings.ssl_keyfile or None, password=""
        )
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"ssl_certfile, ssl_keyfile: are not a certificate and its key: {error}") from None
