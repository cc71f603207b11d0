"""A trial on a cluster: a load, what is done to the cluster meanwhile, and the verdict on the histories of both."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from load.chaos import history
from load.chaos.aof import read_transactions
from load.chaos.checker import Circumstances, Least, Verdict, check
from load.chaos.planted import missed_plants
from load.chaos.streams import Outcome, Streams
from load.nodes.cluster import Cluster
from load.nodes.watch import Watch, moment
from load.report import table
from load.trace import HttpRequest
from load.users.profile import Profile, arrivals
from load.workloads import BEGINNINGS
from services.client.streaming import open_session

# A null engine with this many requests in an iteration of this many seconds computes 160 tokens/s, on any machine.
BATCH, ITERATION = 8, 0.05
NULL = {"null_engine": True, "null_iteration": ITERATION, "max_batch_size": BATCH}
LENGTH = 40  # output tokens of a request: such an engine answers 4 requests/s
PATIENCE = 180.0  # seconds without a sign of life after which a client gives up
IDLE = 120.0  # seconds within which the pool must be empty after all clients have ended


def requests() -> list[HttpRequest]:
    """Streams with short prompts and `LENGTH` tokens each."""
    body = {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}, "temperature": 0}
    fields = body | {"max_tokens": LENGTH, "ignore_eos": True}
    return [
        HttpRequest("/v1/completions", fields | {"prompt": text}, f"greedy {number}")
        for number, text in enumerate(BEGINNINGS)
    ]


@dataclass(slots=True)
class Trial:
    """The load of a trial in `streams`, and the pool meanwhile in `watch`."""

    cluster: Cluster
    streams: Streams
    watch: Watch

    async def open_loop(self, kinds: Sequence[HttpRequest], profile: Profile) -> float:
        """Send requests at the times of `profile`, whether or not earlier ones have their answers; returns the Unix
        time at which that began, when all have ended."""
        began, unix = time.monotonic(), time.time()
        async with asyncio.TaskGroup() as tasks:
            for number, due in enumerate(arrivals(profile, burstiness=1.0, seed=0)):
                await asyncio.sleep(max(0.0, began + due - time.monotonic()))
                tasks.create_task(self.streams.run(kinds[number % len(kinds)]))
        return unix

    async def keep(self, kinds: list[HttpRequest], count: int, over: asyncio.Event) -> None:
        """Keep `count` streams open until `over`; returns when all have ended."""
        await self.streams.keep(kinds, count, over)


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The options of a part. `folder` is where it keeps its files. `model`: `null`, or as `orca serve --model`."""

    folder: Path
    model: str


@contextlib.asynccontextmanager
async def trial(cluster: Cluster, kinds: list[HttpRequest], learn: bool) -> AsyncIterator[Trial]:
    """A trial whose histories are in the cluster's folder. With `learn` the answers of the requests are known from
    having been sent once before; a null engine's answers differ each time."""
    async with open_session(cluster.url) as session:
        with history.Recorder(cluster.folder / "clients.jsonl", time.time) as recorder:
            streams = Streams(session, recorder, PATIENCE)
            if learn:
                await streams.learn(kinds)
            pool, watch = cluster.open_pool(), Watch()
            watching = asyncio.create_task(watch.run(pool))
            try:
                yield Trial(cluster, streams, watch)
                async with asyncio.timeout(IDLE):
                    while (now := await moment(pool)).waiting or any(now.running.values()):  # noqa: ASYNC110 - there is no event
                        await asyncio.sleep(0.5)
            finally:
                watching.cancel()
                await pool.close()


def verdict(cluster: Cluster, streams: Streams, least: Least) -> tuple[str, bool]:
    """The table of the history checker, and whether all rules held and planted violations are found.

    Owners are not looked at here: one on a machine that is cut off lives, and others rightly take it for dead.
    """
    records = list(history.read(cluster.folder / "clients.jsonl"))
    transactions = list(read_transactions(cluster.data))
    found = check(records, transactions, least, Circumstances())
    outcomes = streams.outcomes
    failed = [outcome for outcome in outcomes if outcome.error]
    lines = [_table(outcomes, failed, found), ""]
    lines += [f"failed: {outcome.number} {outcome.request.name}: {outcome.error}"[:500] for outcome in failed[:20]]
    lines += [f"not as undisturbed: {o.request.name}: {o.wrong}"[:500] for o in outcomes if o.wrong][:20]
    lines += [str(violation)[:500] for violation in found.violations[:20]]
    lines += missed_plants(found, records, transactions, random.Random(0))
    held = len(lines) == 2
    lines.append("History checker: " + ("all rules held, planted violations found." if held else "see above."))
    return "\n".join(lines), held


def _table(outcomes: Sequence[Outcome], failed: Sequence[Outcome], found: Verdict) -> str:
    """What became of the requests; the last four rows must be 0."""
    gaps = [end - begin for outcome in outcomes for begin, end in pairwise(outcome.arrivals)]
    wrong = found.count("wrong", "changed", "published", "tokens") + sum(bool(o.wrong) for o in outcomes)
    lost = found.count("lost", "unfinished", "forgotten early") + len(failed)
    twice = found.count("duplicated", "after the end", "ended twice")
    all_found = len(found.violations) + len(failed) + sum(bool(o.wrong) for o in outcomes)
    rows: list[Sequence[object]] = [
        ["requests", len(outcomes)],
        ["tokens delivered", sum(len(c.token_ids) for o in outcomes for c in o.answer.choices.values())],
        ["tokens in the pool's file", sum(len(s.tokens) for s in found.pool.sequences.values())],
        ["streams that were resumed after a broken connection", sum(o.reconnects > 0 for o in outcomes)],
        ["longest gap in a stream, s", f"{max(gaps, default=0.0):.1f}"],
        ["lost", lost],
        ["duplicated", twice],
        ["wrong", wrong],
        ["other violations", all_found - lost - twice - wrong],
    ]
    return table(["", "count"], rows)
