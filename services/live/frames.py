"""The frames of the live feed: what a scheduler publishes while somebody watches, and their JSON.

A watcher gets `iterations` and `state` events, as server-sent events of `GET /ui/feed`, or as the lines of a recording
(`*.jsonl`), each `{"event": NAME, "data": DATA}`; times in a recording of the simulator begin with 0.

`iterations`, some 13 times a second for each engine that runs:

    {"engine": "c/0", "epoch": "17:ab", "iterations": [
       {"step": 17, "at": 1750000000000, "ms": 12.4, "requests": [[4, 24, "i"], [3, 1, "t"]], "blocks": 812,
        "ended": [[3, "stop"]], "preempted": [2], "drafts": [[3, 8, 0]]}, ...],
     "requests": {"4": {"prompt": 24, "class": 0, "cached": 0, "resumed": 0, "id": "chatcmpl-..."}}}

An engine keeps its name; each owner of its seat has another epoch. Steps count from 1 in an epoch, and a gap means
that frames were lost. See `IterationFrame` and `RequestFrame` for the fields. `id` is present only for the tenant to
whom the request belongs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

FRAMES = "live"  # the channel of schedulers' messages
END = b""  # a message on that channel which ends all feeds: a cluster is about to stop
WATCHES = "live:watch"  # the channel on which gateways ask for them
WATCH_TTL = 3.0  # seconds for which schedulers publish after a gateway has asked


class Work(StrEnum):
    """What an iteration computes of a request."""

    INITIATION = "i"  # its whole prompt, except the tokens that the prefix cache has
    CHUNK = "c"  # a part of its prompt
    INCREMENT = "t"  # one token after its prompt, and right ones of a draft
    RECOMPUTATION = "r"  # tokens that were computed before, by an earlier owner or before it lost its blocks


@dataclass(frozen=True, slots=True)
class IterationFrame:
    """An iteration that has finished.

    `requests` are tuples (number of the request, tokens computed, `Work`), in batch order. `blocks` are the KV blocks
    that requests held when it started. `ended` are the requests that have ended since the frame before, as (number,
    finish reason), and are in no later frame; `preempted` those that lost their blocks since then. `drafts` are tuples
    (number of the request, tokens of its draft, how many of them were right); the right ones count as computed.
    """

    step: int
    at: int  # when it started, Unix time in ms
    ms: float  # from its start to its result, as the scheduler measures it
    requests: list[tuple[int, int, str]]
    blocks: int
    ended: list[tuple[int, str]]
    preempted: list[int]
    drafts: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RequestFrame:
    """A request, described when it first runs and again every few seconds, for watchers that came later.

    `n` is unique in an engine's epoch. A request that another owner takes over gets a new one there.
    """

    n: int
    prompt: int  # tokens
    priority: int  # its class, the smallest is served first
    cached: int  # prompt tokens that the prefix cache had
    resumed: int  # output tokens that earlier owners had committed
    id: str  # of the sequence, `<request>/<choice>`
    tenant: str

    def shown_to(self, tenant: str) -> dict[str, Any]:
        """Return the description for a watcher of `tenant`, which learns the ids of its own requests only."""
        shown = {"prompt": self.prompt, "class": self.priority, "cached": self.cached, "resumed": self.resumed}
        return shown | ({"id": self.id} if tenant == self.tenant else {})


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """The message of a scheduler to the gateways: the frames since its last one. `iterations` is the JSON of a list of
    `IterationFrame`, which is the same for all watchers, so that no gateway has to parse it.
    """

    engine: str
    epoch: str
    iterations: bytes
    requests: list[RequestFrame]

    def json(self, tenant: str) -> bytes:
        """Return the data of the `iterations` event for a watcher of `tenant`."""
        data = {
            "engine": self.engine,
            "epoch": self.epoch,
            "iterations": orjson.Fragment(self.iterations),
            "requests": {str(request.n): request.shown_to(tenant) for request in self.requests},
        }
        return orjson.dumps(data)
