"""A running server, as the commands that talk to one see it."""

from __future__ import annotations

import httpx

from services.config import load
from services.errors import OrcaError


def base_url() -> str:
    """Where `orca serve` with these settings listens."""
    settings = load()
    return f"http://{settings.host}:{settings.port}"


def served_model(client: httpx.Client) -> str:
    """The name of the model that is served. Raises OrcaError when no server answers."""
    try:
        response = client.get("/v1/models")
        return str(response.raise_for_status().json()["data"][0]["id"])
    except httpx.HTTPError as error:
        raise OrcaError(f"no server answers at {client.base_url}: {error}; start one with: orca serve") from error
