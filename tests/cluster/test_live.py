"""The live feed of a real server, while one of its processes dies."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
from typing import Any

import httpx
import pytest

from load.server import OrcaServer

pytestmark = pytest.mark.cluster

# drawn at random, tokens are rarely guessed by drafts: the request runs long after the scheduler is killed
BODY = {"prompt": [*range(300, 400)], "max_tokens": 200, "seed": 7, "ignore_eos": True, "stream": True}


def test_the_feed_goes_on_when_another_scheduler_takes_over(server: OrcaServer) -> None:
    server.until_spares()
    scheduler = server.scheduler()  # asked before: asking takes its time
    assert "default-src 'none'" in httpx.get(server.url + "/ui").headers["content-security-policy"]
    batches: queue.Queue[dict[str, Any]] = queue.Queue()
    with httpx.stream("GET", server.url + "/ui/feed", timeout=60) as feed:
        lines = feed.iter_lines()
        assert next(lines) == "event: state"
        engine = json.loads(next(lines).removeprefix("data: "))["engines"][0]
        assert (engine["alive"], engine["ready"]) == (True, True)
        reading = threading.Thread(target=read, args=(lines, batches), daemon=True)
        reading.start()
        with httpx.stream("POST", server.url + "/v1/completions", json=BODY, timeout=60) as running:
            first = batch = batches.get(timeout=60)
            ((n, described),) = batch["requests"].items()
            before = works(batch, int(n))
            while "t" not in {work for _, work in before}:
                before += works(batch := batches.get(timeout=60), int(n))
            assert (
                described["cached"] + sum(tokens for tokens, work in before if work in "ic")
                == described["prompt"]
                == 100
            )
            os.kill(scheduler, signal.SIGKILL)
            while (batch := batches.get(timeout=60))["epoch"] == first["epoch"]:
                pass
            ((n, again),) = batch["requests"].items()
            assert (again["id"], again["prompt"]) == (described["id"], 100)
            assert again["resumed"] > 0
            assert batch["iterations"][0]["step"] == 1
            tokens, work = works(batch, int(n))[0]
            assert work == ("r" if tokens > 1 else "t")  # all but the last token may be in blocks that the engine kept
            while not any(iteration["ended"] for iteration in batch["iterations"]):
                batch = batches.get(timeout=60)
            assert running.read().endswith(b"data: [DONE]\n\n")
        assert described["id"].startswith(json.loads(running.text.split("\n")[0].removeprefix("data: "))["id"])
    reading.join(60)


def works(batch: dict[str, Any], request: int) -> list[tuple[int, str]]:
    """What was computed of a request: (tokens, work) of each iteration in which it was."""
    cells = [cell for iteration in batch["iterations"] for cell in iteration["requests"]]
    return [(tokens, work) for n, tokens, work in cells if n == request]


def read(lines: Any, batches: queue.Queue[dict[str, Any]]) -> None:
    """Put the data of each batch into the queue, until the connection is closed."""
    try:
        for line in lines:
            if line == "event: iterations":
                batches.put(json.loads(next(lines).removeprefix("data: ")))
    except httpx.HTTPError:
        pass
