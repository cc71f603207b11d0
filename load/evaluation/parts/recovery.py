"""How soon streams continue after the scheduler or the engine was killed, and where the time goes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from load.chaos.site import loaded_engine, owning_schedulers
from load.chaos.streams import Outcome, Streams, recovery
from load.evaluation.bench import Bench, Found, Plots
from load.options import model_folder
from load.plots import Line, Panel
from load.report import Table
from load.server import OrcaServer, until
from load.trace import HttpRequest, Request
from load.workloads import any_prompt
from services.client.streaming import open_session
from services.models.info import ModelInfo

HELP = "streams through a kill of the engine and of its scheduler: time between tokens, and the phases of the recovery"
STREAMS, PROMPT = 8, 64
RATE = 20  # tokens of each stream for each second of `Bench.seconds`
LEAST = 120  # tokens of each stream
SPAN = 2.0  # seconds that a stream of a fast engine lasts at least, if the model takes so many tokens
UNDER_WAY = 40  # tokens of each stream before the kill
PATIENCE = 120.0  # seconds
BEFORE, AFTER = 1.5, 3.0  # seconds that the plot shows
PHASED = (16, 500, 120, 8)  # streams with longer prompts: their number, tokens in, out, and before the kill
MOMENTS = ("noticed", "acquired", "attached", "first_iteration")
PHASES = ("detection", "seat", "attachment", "recomputation")
TITLE = f"{STREAMS} sampled streams; each answer is the undisturbed one"
SECONDS = f"Seconds after SIGKILL, {PHASED[0]} streams with prompts of {PHASED[1]} tokens"
PLOTTED = ("engine", "scheduler")
VICTIMS: dict[str, Callable[[OrcaServer], list[int]]] = {
    "scheduler": owning_schedulers,
    "engine": lambda server: [loaded_engine(server)],
    "both": lambda server: [loaded_engine(server), *owning_schedulers(server)],
}


@dataclass(frozen=True, slots=True)
class Kill:
    """Streams through a kill at `at` on the clock of `time.monotonic`, which is `unix` in Unix time; `held`: tokens of
    prompts and answers at that moment."""

    at: float
    unix: float
    held: int
    outcomes: list[Outcome]

    @property
    def longest_gap(self) -> float:
        """The longest time between two tokens of a stream of which the second came after the kill, in seconds."""
        pairs = [pair for outcome in self.outcomes for pair in pairwise(outcome.arrivals)]
        return max(after - before for before, after in pairs if after > self.at)


def measure(bench: Bench) -> Found:
    longest = ModelInfo.load(model_folder(bench.options), bench.options.cache_dir).max_model_len
    with bench.server("--gateways", "2") as server:
        return asyncio.run(_all(server, max(LEAST, round(RATE * bench.seconds)), longest))


async def _all(server: OrcaServer, tokens: int, longest: int) -> Found:
    """`tokens` of each stream at least; `longest`: tokens of a prompt and its answer."""
    rows, seconds, series = Table(), Table(), {}
    async with open_session(server.url) as session:
        streams = Streams(session, None, PATIENCE)
        pace = await _pace(streams)

        def lasting(least: int, prompt: int) -> int:
            return max(least, min(round(SPAN * pace), longest - prompt))

        requests = [request(number, PROMPT, lasting(tokens, PROMPT)) for number in range(STREAMS)]
        await streams.learn(requests)
        rows["undisturbed"] = _gaps(await asyncio.gather(*(streams.run(one) for one in requests)))
        for victim in PLOTTED:
            killed = await kill(server, streams, victim, requests, UNDER_WAY)
            series[victim] = arrivals(killed)
            rows[f"{victim} killed"] = cells(killed)
        count, prompt, output, under_way = PHASED
        requests = [request(number, prompt, lasting(output, prompt)) for number in range(count)]
        await streams.learn(requests)
        for victim in VICTIMS:
            killed = await kill(server, streams, victim, requests, under_way)
            metrics = await asyncio.to_thread(server.metrics)
            await asyncio.to_thread(server.until_spares)
            seconds[victim] = _phases(killed, metrics) | {"spares again": time.monotonic() - killed.at}
    return Found({TITLE: rows, SECONDS: seconds}, series)


def request(number: int, prompt: int, output: int) -> HttpRequest:
    """A stream that is sampled: any other bit of a logit may give another token."""
    greedy = Request(any_prompt(prompt, number), output).http()
    name, body = f"recovery {number}, {prompt} tokens", greedy.body | {"temperature": 1, "seed": number}
    return replace(greedy, body=body, name=name)


async def _pace(streams: Streams) -> float:
    """Tokens per second of a lone stream."""
    lone = await streams.run(request(STREAMS, PROMPT, LEAST))
    return LEAST / (lone.arrivals[-1] - lone.arrivals[0])


async def kill(server: OrcaServer, streams: Streams, victim: str, requests: list[HttpRequest], under_way: int) -> Kill:
    """Kill once the server has spares and each stream of `requests` has had `under_way` tokens, and wait for the
    streams' ends. Raises RuntimeError if the answer of one differs from the undisturbed one."""
    await asyncio.to_thread(server.until_spares)
    pids = await asyncio.to_thread(VICTIMS[victim], server)
    before = len(streams.outcomes)
    tasks = [asyncio.create_task(streams.run(request)) for request in requests]

    def all_under_way() -> bool:
        own = streams.outcomes[before:]
        return len(own) == len(requests) and all(_tokens(outcome) >= under_way for outcome in own)

    await until(all_under_way, PATIENCE, every=0.01)
    outcomes = streams.outcomes[before:]
    if ended := sum(bool(outcome.end) for outcome in outcomes):
        raise RuntimeError(f"{ended} of {len(requests)} streams ended before the kill: they need more tokens")
    held = sum(len(o.request.body["prompt"]) + _tokens(o) for o in outcomes)
    killed = Kill(time.monotonic(), time.time(), held, outcomes)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*tasks)
    if bad := [o.error or o.wrong for o in outcomes if o.error or o.wrong]:
        raise RuntimeError(f"{len(bad)} of {len(requests)} streams are not as undisturbed: {bad[0]}")
    return killed


def _phases(killed: Kill, metrics: dict[str, float]) -> dict[str, float]:
    """Seconds until the streams went on, and of the phases of that."""
    moments = [killed.unix, *(metrics[f"orca:recovery_{name}_time_seconds"] for name in MOMENTS)]
    found = recovery(killed.at, killed.outcomes)
    assert found is not None, "all streams were open"
    return {
        "longest gap": killed.longest_gap,
        "first token": found.first,
        "all streams": found.last,
        **{name: after - before for name, (before, after) in zip(PHASES, pairwise(moments), strict=True)},
        "of the attachment weights": metrics["orca:recovery_loading_seconds"],
        "tokens held": float(killed.held),
    }


def _tokens(outcome: Outcome) -> int:
    return sum(len(choice.token_ids) for choice in outcome.answer.choices.values())


def arrivals(killed: Kill) -> list[list[float]]:
    """When tokens of each stream came, in seconds after the kill."""
    return [[round(at - killed.at, 4) for at in outcome.arrivals] for outcome in killed.outcomes]


def cells(killed: Kill) -> dict[str, float]:
    return _gaps(killed.outcomes) | {"longest gap after the kill, ms": killed.longest_gap * 1e3}


def _gaps(outcomes: list[Outcome]) -> dict[str, float]:
    gaps = sorted(1e3 * (after - before) for o in outcomes for before, after in pairwise(o.arrivals))
    return {"median between tokens, ms": gaps[len(gaps) // 2], "longest, ms": gaps[-1]}


def plots(found: Found) -> Plots:
    panels = []
    for victim, streams in found.series.items():
        shown = [[pair for pair in pairwise(stream) if -BEFORE <= pair[1] <= AFTER] for stream in streams]
        of_all = [(after, 1e3 * (after - before)) for stream in shown for before, after in stream]
        lines = [
            Line(f"all {len(streams)} streams", [x for x, _ in of_all], [y for _, y in of_all], dots=True, color="C7"),
            Line("one of them", [x for x, _ in of_all[: len(shown[0])]], [y for _, y in of_all[: len(shown[0])]]),
        ]
        title = f"Streams through a SIGKILL of the {victim}"
        panels.append(Panel(title, "seconds after the kill", "ms since the token before", lines, mark=0.0))
    return {"recovery": panels}
