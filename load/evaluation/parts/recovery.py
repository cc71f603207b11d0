"""Streams through a kill: the time between tokens before and after SIGKILL of the engine or of its scheduler."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import aiohttp

from load.bench.figures import Table
from load.bench.parts.recovery import PATIENCE, Kill, kill, longest_gap, request
from load.chaos.streams import Streams
from load.evaluation.bench import Bench, Found, Plots
from load.plots import Line, Panel
from load.server import OrcaServer, until
from load.workloads import any_prompt
from services.client.streaming import open_session

HELP = "streams through a kill: time between tokens over time"
STREAMS, PROMPT = 8, 64
RATE = 20  # tokens of each stream for each second of `Bench.seconds`
LEAST = 120  # tokens of each stream
UNDER_WAY = 40  # tokens of each stream before the kill
VICTIMS = ("engine", "scheduler")
BEFORE, AFTER = 1.5, 3.0  # seconds that the plot shows
TITLE = f"{STREAMS} streams; each answer is the undisturbed one"


def measure(bench: Bench) -> Found:
    with bench.server("--gateways", "2") as server:
        return asyncio.run(_all(server, max(LEAST, round(RATE * bench.seconds))))


async def _all(server: OrcaServer, tokens: int) -> Found:
    rows: Table = {}
    series = {}
    async with open_session(server.url) as session:
        requests = [request(number, any_prompt(PROMPT, number), tokens) for number in range(STREAMS)]
        undisturbed = Streams(session, None, PATIENCE)
        await undisturbed.learn(requests)
        for victim in VICTIMS:
            await until(server.has_spares, PATIENCE)
            killed = await kill(server, session, victim, requests, undisturbed, UNDER_WAY)
            series[victim] = arrivals(killed)
            rows[f"{victim} killed"] = cells(killed)
        rows = {"undisturbed": await _undisturbed(session, requests)} | rows
    return Found({TITLE: rows}, series)


async def _undisturbed(session: aiohttp.ClientSession, requests: list[Any]) -> dict[str, float]:
    streams = Streams(session, None, PATIENCE)
    await asyncio.gather(*(streams.run(one) for one in requests))
    return _gaps([outcome.arrivals for outcome in streams.outcomes])


def arrivals(killed: Kill) -> list[list[float]]:
    """When tokens of each stream came, in seconds after the kill."""
    return [[round(at - killed.at, 4) for at in outcome.arrivals] for outcome in killed.outcomes]


def plots(found: Found) -> Plots:
    panels = []
    for victim, streams in found.series.items():
        points = [(at, 1e3 * gap) for stream in streams for at, gap in _shown(stream)]
        one = [(at, 1e3 * gap) for at, gap in _shown(streams[0])]
        lines = [
            Line(f"all {len(streams)} streams", [x for x, _ in points], [y for _, y in points], dots=True, color="C7"),
            Line("one of them", [x for x, _ in one], [y for _, y in one], color="C0"),
        ]
        panels.append(
            Panel(
                f"Streams through a kill of the {victim}",
                "seconds after the kill",
                "ms since the token before",
                lines,
                marks={"SIGKILL": 0.0},
            )
        )
    return {"recovery": list(panels)}


def _shown(stream: list[float]) -> list[tuple[float, float]]:
    """The tokens that the plot shows, with the seconds since the one before."""
    return [(after, after - before) for before, after in pairwise(stream) if -BEFORE <= after <= AFTER]


def cells(killed: Kill) -> dict[str, float]:
    return _gaps([outcome.arrivals for outcome in killed.outcomes]) | {
        "longest gap after the kill, ms": longest_gap(killed.at, killed.outcomes) * 1e3
    }


def _gaps(streams: list[list[float]]) -> dict[str, float]:
    gaps = sorted(1e3 * (after - before) for stream in streams for before, after in pairwise(stream))
    return {"median between tokens, ms": gaps[len(gaps) // 2], "longest, ms": gaps[-1]}
