"""Batches through the official client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import openai
from openai.types import Batch

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ENDED = ("completed", "failed", "expired", "cancelled")


def line(id: str, body: dict[str, Any], url: str = COMPLETIONS) -> dict[str, Any]:
    return {"custom_id": id, "method": "POST", "url": url, "body": body}


def jsonl(lines: list[Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def create(client: openai.OpenAI, content: bytes, endpoint: Any = COMPLETIONS, **more: Any) -> Batch:
    file = client.files.create(file=("lines.jsonl", content), purpose="batch")
    fields = {"completion_window": "24h"} | more
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, **fields)  # type: ignore[arg-type]  # `more` is of any type


def until(client: openai.OpenAI, id: str, condition: Callable[[Batch], bool]) -> Batch:
    end = time.monotonic() + 60
    while not condition(batch := client.batches.retrieve(id)):
        assert time.monotonic() < end, batch
        time.sleep(0.05)
    return batch


def ended(client: openai.OpenAI, batch: Batch) -> Batch:
    return until(client, batch.id, lambda batch: batch.status in ENDED)


def entries(client: openai.OpenAI, id: str | None) -> list[dict[str, Any]]:
    assert id is not None
    return [json.loads(each) for each in client.files.content(id).text.splitlines()]


def slow(count: int) -> bytes:
    return jsonl([line(f"line {i}", {"prompt": f"SLOW{i}", "max_tokens": 5}) for i in range(count)])
