"""What the commands that talk to a running server share: its address, its key and its model."""

from __future__ import annotations

import os
import ssl
from typing import Any
from urllib.parse import urlsplit

import httpx

from cli.arguments import Parser
from cli.port_claim import own_url, running_servers
from services.errors import OrcaError, UsageError
from services.settings.addresses import is_loopback
from services.settings.settings import SECRETS
from services.settings.sources import from_values, read_values
from services.settings.types import is_hash

ADDRESS = frozenset({"host", "port", "ssl_certfile"})  # settings that say where a server listens


def add_server(parser: Parser) -> None:
    """Add the flags `--url` and `--api-key`."""
    keys = read_values().get("api_key") or ("",)
    own = [keys] if isinstance(keys, str) else [str(key) for key in keys]
    key = next((key for key in own if not is_hash(key)), own[0])
    parser.add_argument("--url", help="address of the server (default: that of the settings, or the one that runs)")
    parser.add_argument("--api-key", default=key, metavar="KEY", help="key to send (default: ORCA_API_KEY)")


def find_url(given: str | None) -> str:
    """The URL of the server: `given`; else the address that the settings of this process name; else that of the only
    server that runs on the data folder; else the default address, where a server may run on another folder.

    Raises UsageError if several servers run on the folder.
    """
    if given:
        return given
    values = read_values()
    settings = from_values({name: value for name, value in values.items() if name not in SECRETS})
    if not ADDRESS.isdisjoint(values):
        return own_url(settings)
    running = list(running_servers(settings.data_dir).values())
    if len(running) > 1:
        raise UsageError(f"several servers run: {', '.join(running)}; name one of them: --url {running[0]}")
    return running[0] if running else own_url(settings)


def connection(url: str | None, api_key: str) -> dict[str, Any]:
    """The arguments of an HTTP client for the server at `find_url(url)`. A server of this machine is asked directly,
    whatever proxy the environment names; one that the user names elsewhere is asked as the environment says."""
    found = find_url(url)
    own = not url or is_loopback(urlsplit(url).hostname or "")
    return {"base_url": found, "headers": headers(api_key)} | (direct(found) if own else {})


def direct(url: str) -> dict[str, Any]:
    """The arguments of an HTTP client that uses no proxy. Certificates of the environment are still trusted."""
    if not url.startswith("https"):
        return {"trust_env": False}
    trusted = ssl.create_default_context()
    if (file := os.environ.get("SSL_CERT_FILE")) or os.environ.get("SSL_CERT_DIR"):
        trusted.load_verify_locations(file, os.environ.get("SSL_CERT_DIR"))
    return {"trust_env": False, "verify": trusted}


def headers(api_key: str) -> dict[str, str]:
    """The headers of each request. Raises UsageError for the hash of a key, which no server accepts."""
    if is_hash(api_key):
        raise UsageError(
            "--api-key, or api_key of the settings (ORCA_API_KEY), is the hash of a key, which a server does not take; "
            "give the key that the hash was made of: --api-key KEY"
        )
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def served_model(client: httpx.Client) -> str:
    """The name of the served model. Raises OrcaError if no server answers, or if the server asks for another key."""
    try:
        response = client.get("/v1/models")
        return str(response.raise_for_status().json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        raise OrcaError(not_answering(client.base_url, error.response)) from error
    except httpx.HTTPError as error:
        raise OrcaError(not_answering(client.base_url, error)) from error


def not_answering(url: httpx.URL, why: httpx.Response | httpx.HTTPError) -> str:
    """The message for a server that refuses a request, or for none at this address."""
    if isinstance(why, httpx.HTTPError):
        return f"no server answers at {url}: {str(why) or type(why).__name__}; start one with: orca serve"
    if why.status_code == httpx.codes.UNAUTHORIZED:
        return f"{url} asks for an API key: --api-key KEY or ORCA_API_KEY"
    return f"{url} is not an Orca server: {why.request.method} {why.request.url.path} gave {why.status_code}"
