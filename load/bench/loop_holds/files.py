"""A file of the longest lines that a batch takes, and the batch that reads it."""

from __future__ import annotations

import asyncio

import httpx
import orjson

LINE = 8 << 20  # bytes, about
LINES = 4
PAUSE = 0.2  # seconds between looks
LOOKS = 300


async def send_batch(client: httpx.AsyncClient) -> str:
    """Upload it, run it to its end; the batch's status."""
    content = b"".join(_line(number) for number in range(LINES))
    sent = await client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", content)})
    sent.raise_for_status()
    asked = {"input_file_id": sent.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    made = await client.post("/v1/batches", json=asked)
    made.raise_for_status()
    for _ in range(LOOKS):
        batch = (await client.get(f"/v1/batches/{made.json()['id']}")).json()
        if batch["status"] in ("completed", "failed"):
            break
        await asyncio.sleep(PAUSE)
    return str(batch["status"])


def _line(number: int) -> bytes:
    """One has ids, one empty lists, one text, and one is longer than any body."""
    kinds = [[12345] * (LINE // 6 - 100), [[]] * (LINE // 3 - 100), "1" * (LINE - 1000), "1" * (31 << 20)]
    body = {"prompt": kinds[number % len(kinds)], "max_tokens": 1}
    return orjson.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}) + b"\n"
