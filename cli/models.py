"""`orca models`: shows the models of a running server, adds one and removes one."""

from __future__ import annotations

import argparse
import time
from typing import Any

import httpx

from cli.arguments import Parser, json_value
from cli.server import add_server, connection, not_answering
from services.errors import OrcaError, UsageError

POLL = 0.5  # seconds
LOADING = 900.0  # seconds that a model may take to be fetched and converted


def run(arguments: list[str]) -> None:
    parser = Parser("orca models", "The models of a running server. Adding and removing need its operator's key.")
    parser.add_argument("action", nargs="?", choices=("list", "add", "remove"), default="list")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="as for orca serve; to remove one, its name")
    parser.add_argument("--settings", type=_object, default={}, metavar="JSON", help="what the model has of its own")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until the model is ready, or gone")
    add_server(parser)
    options = parser.read(arguments)
    if (options.action == "list") != (options.model is None):
        raise UsageError("orca models list, orca models add MODEL, or orca models remove NAME")
    with httpx.Client(**connection(options.url, options.api_key), timeout=LOADING) as client:
        if options.action == "list":
            for card in _cards(client):
                print(_row(card))
            return
        adds = options.action == "add"
        path, settings = ("/v1/load_model", {"settings": options.settings}) if adds else ("/v1/unload_model", {})
        card = _answer(client, client.build_request("POST", path, json={"model": options.model} | settings))
        _wait(client, card["id"], card["status"] if options.no_wait else "ready" if adds else "gone")


def _row(card: dict[str, Any]) -> str:
    about = [f"{card['max_model_len']:>10,} tokens", card.get("failure", "")]
    if card.get("parent"):
        whose = ", ".join(card.get("tenants", ()))
        about.append(f"adapter of {card['parent']}" + f", for {whose}" * bool(whose))
    return f"{card['id']:40} {card['status']:8} {'  '.join(filter(None, about))}"


def _object(text: str) -> dict[str, Any]:
    found = json_value(text)
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("is no JSON object with settings of the model")
    return found


def _wait(client: httpx.Client, name: str, end: str) -> None:
    """Print the states of a model as they come, until it is `end`. Each is printed once: gateways learn of it one after
    the other."""
    said: set[str] = set()
    while end not in said:
        absent = "gone" if end == "gone" else "loading"
        card = next((card for card in _cards(client) if card["id"] == name), {})
        state = card.get("status", absent)
        if end == "ready" and state == "failed":
            raise OrcaError(f"{name} could not be loaded: {card['failure']}; the server tries again")
        if state in said:
            time.sleep(POLL)
        else:
            print(f"{name}: {state}", flush=True)
            said.add(state)


def _cards(client: httpx.Client) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = _answer(client, client.build_request("GET", "/v1/models"))["data"]
    return listed


def _answer(client: httpx.Client, request: httpx.Request) -> dict[str, Any]:
    """Raises OrcaError if no server answers, or with the server's own words if it refuses."""
    try:
        response = client.send(request)
    except httpx.HTTPError as error:
        raise OrcaError(not_answering(client.base_url, error)) from error
    try:
        answer: dict[str, Any] = response.json()
        said = answer["error"]["message"] if response.is_error else ""
    except (ValueError, KeyError, TypeError):
        raise OrcaError(not_answering(client.base_url, response)) from None
    if said:
        raise OrcaError(said)
    return answer
