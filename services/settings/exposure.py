"""Checks of the settings that decide which machines can reach the API, made before a server starts."""

from __future__ import annotations

import ssl
from pathlib import Path

from services.errors import UsageError
from services.settings.addresses import is_loopback
from services.settings.settings import Settings


def check(settings: Settings) -> None:
    """Raise UsageError if other machines could use the server without an API key and no setting allows that, or if the
    TLS files are wrong.
    """
    if not (is_loopback(settings.host) or settings.tenants or settings.allow_no_keys):
        raise UsageError(
            f"host={settings.host}: anyone who reaches this address could use the server without an API key; "
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
        # without a password, ssl would ask for that of an encrypted key at the terminal
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            settings.ssl_certfile, settings.ssl_keyfile or None, password=""
        )
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"ssl_certfile, ssl_keyfile: are not a certificate and its key: {error}") from None
