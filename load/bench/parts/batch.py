"""Batch: the latency of interactive requests while a batch runs, and the throughput of a batch alone."""

from __future__ import annotations

import asyncio
import io
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from load.options import Options, model_folder
from load.over_http import OverHttp
from load.report import in_turn, quantile, spread, table
from load.server import OrcaServer
from load.trace import Answer, Request
from load.workloads import any_prompt
from services.client.streaming import open_session

ENDED = ("completed", "failed", "expired", "cancelled")
PATIENCE = 600.0  # seconds


@dataclass(frozen=True, slots=True)
class Size:
    """Each of `users` users sends `requests` requests one after the other, with mean pauses of `pause` seconds."""

    users: int = 2
    requests: int = 10
    pause: float = 0.5
    prompt: int = 64
    tokens: int = 48
    lines: int = 5000
    line_prompt: int = 64
    line_tokens: int = 64
    rounds: int = 3
    alone: int = 300  # lines of the batch that runs alone
    null_lines: int = 10_000


@dataclass(slots=True)
class Round:
    """What the users of one round got; `lines`: lines of the batch that were answered per second meanwhile."""

    answers: list[Answer] = field(default_factory=list)
    lines: float = 0.0


def run(options: Options) -> str:
    size, flags = Size(), ["--model", str(model_folder(options)), "--device", options.device, "--dtype", options.dtype]
    with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags) as server:
        asyncio.run(_users(server.url, size, seed=1000))  # warm up
        variants = {
            "alone": lambda: users_alone(server, size),
            "with a batch": lambda: users_beside_batch(server, size),
        }
        rounds = in_turn(variants, size.rounds)
        alone = run_batch(server, lines(size.alone, size))
    with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags, "--null-engine") as server:
        null = run_batch(server, lines(size.null_lines, size))
    return report(size, rounds, alone, null)


def report(size: Size, rounds: dict[str, list[Round]], alone: float, null: float) -> str:
    head = ["interactive requests", "TTFT, ms", "p90", "time per token, ms", "p90", "lines/s meanwhile"]
    return (
        f"{size.users} users with pauses of {size.pause} s ({size.prompt} tokens in, {size.tokens} out), "
        f"{size.rounds} rounds of {size.users * size.requests} requests in turn; median of the rounds' medians, least "
        f"and most; default settings.\n\n"
        + table(head, [[name, *_cells(several)] for name, several in rounds.items()])
        + f"\n\nA batch alone, {size.alone} lines ({size.line_prompt} tokens in, {size.line_tokens} out): "
        f"{size.alone / alone:.1f} lines/s, {size.alone * size.line_tokens / alone:,.0f} output tokens/s. On the null "
        f"engine {size.null_lines:,} lines in {null:.1f} s: {size.null_lines / null:,.0f} lines/s."
    )


def _cells(rounds: Sequence[Round]) -> list[str]:
    first = [[1000 * a.ttft for a in one.answers] for one in rounds]
    each = [[1000 * (a.latency - a.ttft) / (len(a.tokens) - 1) for a in one.answers] for one in rounds]
    cells = []
    for values in (first, each):
        cells.append(spread([quantile(one, 0.5) for one in values]))
        cells.append(f"{quantile([v for one in values for v in one], 0.9):.1f}")
    return [*cells, spread([one.lines for one in rounds])]


def users_alone(server: OrcaServer, size: Size) -> Round:
    """The users without a batch."""
    return Round(asyncio.run(_users(server.url, size, seed=0)))


def users_beside_batch(server: OrcaServer, size: Size) -> Round:
    """The same users while a batch runs."""
    with httpx.Client(base_url=server.url, timeout=60, verify=False) as client:
        batch = submit(client, lines(size.lines, size))
        before = until(client, batch, lambda b: b["request_counts"]["completed"] > 0)
        began = time.perf_counter()
        answers = asyncio.run(_users(server.url, size, seed=0))
        after, seconds = client.get(f"/v1/batches/{batch}").json(), time.perf_counter() - began
        client.post(f"/v1/batches/{batch}/cancel").raise_for_status()
        until(client, batch, lambda b: b["status"] in ENDED)
    done = after["request_counts"]["completed"] - before["request_counts"]["completed"]
    return Round(answers, done / seconds)


async def _users(url: str, size: Size, seed: int) -> list[Answer]:
    async with open_session(url) as session:
        server = OverHttp(session)

        async def user(number: int) -> list[Answer]:
            draw, answers = random.Random(seed + number), []
            for _ in range(size.requests):
                await asyncio.sleep(draw.expovariate(1 / size.pause))
                request = Request(any_prompt(size.prompt, random.getrandbits(32)), size.tokens)
                answers.append(await server.ask(request))
            return answers

        users = await asyncio.gather(*map(user, range(size.users)))
        return [answer for answers in users for answer in answers]


def lines(count: int, size: Size) -> bytes:
    """The input file of a batch with `count` lines."""

    def line(number: int) -> bytes:
        body = {
            "prompt": any_prompt(size.line_prompt, number),
            "max_tokens": size.line_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        request = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body}
        return json.dumps(request).encode() + b"\n"

    return b"".join(map(line, range(count)))


def run_batch(server: OrcaServer, content: bytes) -> float:
    """Seconds from the creation of a batch to its end. Raises AssertionError unless each line has one answer."""
    with httpx.Client(base_url=server.url, timeout=60, verify=False) as client:
        began = time.perf_counter()
        id = submit(client, content)
        batch = until(client, id, lambda b: b["status"] in ENDED)
        seconds = time.perf_counter() - began
        output = client.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()
    expected = [json.loads(line)["custom_id"] for line in content.splitlines()]
    answered = [json.loads(line)["custom_id"] for line in output]
    assert answered == expected, f"{len(answered)} answers to {len(expected)} lines"
    return seconds


def submit(client: httpx.Client, content: bytes) -> str:
    """Create a batch; returns its id."""
    sent = {"file": ("lines.jsonl", io.BytesIO(content))}
    file = client.post("/v1/files", data={"purpose": "batch"}, files=sent).raise_for_status().json()
    body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    return str(client.post("/v1/batches", json=body).raise_for_status().json()["id"])


def until(client: httpx.Client, id: str, condition: Any) -> dict[str, Any]:
    """Wait until `condition` holds for the batch; returns the batch."""
    end = time.monotonic() + PATIENCE
    while not condition(batch := client.get(f"/v1/batches/{id}").json()):
        assert time.monotonic() < end, f"{PATIENCE:.0f} s, and still {batch}"
        time.sleep(0.1)
    return dict(batch)
