"""Requests whose tokens are compared, whatever happens to the cluster meanwhile."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.deploy.compose_cluster import ComposeCluster

PATH = "/v1/completions"


def tokens_of(cluster: ComposeCluster, at_first: Callable[[], None] = lambda: None) -> list[int]:
    """Token ids of a request, of its stream or, where that broke with its gateway, asked for again under its key.

    `at_first` is called when the stream brought the first tokens.
    """
    body = {"prompt": "hello", "max_tokens": 500, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    asked: dict[str, Any] = {"headers": {"Idempotency-Key": secrets.token_hex(8)}, "timeout": 100, "verify": False}
    tokens: list[int] = []
    with contextlib.suppress(httpx.HTTPError):
        for some in stream(cluster.url + PATH, asked | {"json": body | {"stream": True}}):
            first = not tokens
            tokens += some
            if first and tokens:
                at_first()
        return tokens
    replies: list[httpx.Response] = []

    def answered() -> bool:
        with contextlib.suppress(httpx.TransportError):
            replies.append(httpx.post(cluster.url + PATH, **asked, json=body))
        return bool(replies) and replies[-1].is_success

    cluster.containers.until("the request is answered", answered)
    (choice,) = replies[-1].json()["choices"]
    assert choice["token_ids"][: len(tokens)] == tokens
    return choice["token_ids"]


def tokens_during(cluster: ComposeCluster, change: Callable[[], None]) -> set[tuple[int, ...]]:
    """The different answers to a request that is made again and again while `change` runs, and once after it."""
    with ThreadPoolExecutor(1) as beside:
        changing = beside.submit(change)
        answers = {tuple(tokens_of(cluster))}
        while not changing.done():
            answers.add(tuple(tokens_of(cluster)))
        changing.result()
    return answers | {tuple(tokens_of(cluster))}


def stream(url: str, asked: dict[str, Any]) -> Iterator[list[int]]:
    with httpx.stream("POST", url, **asked) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            if line == "data: [DONE]":
                return
            if line.startswith("data: "):
                (choice,) = json.loads(line[6:])["choices"]
                yield choice["token_ids"]
    raise AssertionError("the stream ended without [DONE]")
