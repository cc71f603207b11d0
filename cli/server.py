"""A running server, as the commands that talk to one see it."""

from __future__ import annotations

import httpx

from cli.arguments import Parser
from services.addresses import in_url, is_every
from services.config import SECRETS, Settings, given, made
from services.errors import OrcaError, UsageError
from services.setting_types import is_hash


def add_server(parser: Parser) -> None:
    """`--url` and `--api-key`: by default those of an `orca serve` with the settings of this process."""
    values = given()
    settings = made({name: value for name, value in values.items() if name not in SECRETS})
    parser.add_argument("--url", default=own_url(settings), help="address of the server (default: %(default)s)")
    keys = values.get("api_key") or ("",)
    own = [keys] if isinstance(keys, str) else [str(key) for key in keys]
    key = next((key for key in own if not is_hash(key)), own[0])
    parser.add_argument("--api-key", default=key, metavar="KEY", help="key to send (default: ORCA_API_KEY)")


def own_url(settings: Settings) -> str:
    """Where a server with these settings answers its own machine."""
    host = "127.0.0.1" if is_every(settings.host) else in_url(settings.host)
    return f"http{'s' * bool(settings.ssl_certfile)}://{host}:{settings.port}"


def headers(api_key: str) -> dict[str, str]:
    """What to send with each request. Raises UsageError for the hash of a key, which no server takes."""
    if is_hash(api_key):
        raise UsageError(
            "--api-key, or api_key of the settings (ORCA_API_KEY), is the hash of a key, which a server does not take; "
            "give the key that the hash was made of: --api-key KEY"
        )
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def served_model(client: httpx.Client) -> str:
    """The name of the model that is served. Raises OrcaError when no server answers, or asks for another key."""
    try:
        response = client.get("/v1/models")
        return str(response.raise_for_status().json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.UNAUTHORIZED:
            raise OrcaError(f"{client.base_url} asks for an API key: --api-key KEY or ORCA_API_KEY") from error
        raise OrcaError(f"{client.base_url} is no server of Orca: {error}") from error
    except httpx.HTTPError as error:
        raise OrcaError(f"no server answers at {client.base_url}: {error}; start one with: orca serve") from error
