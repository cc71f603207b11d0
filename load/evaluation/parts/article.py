"""An article's comparison on this machine: static batches, Orca, and prompts in chunks.

The requests are those of the simulator's part `article`: one prompt in ten has 2,048 tokens. A few users send one
request after the other; all policies answer the same requests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

from load.bench.figures import Table
from load.bench.gpu.end_to_end import prompted
from load.evaluation.bench import Bench, Found, Plots
from load.in_process import Setup, serving
from load.plots import Bars
from load.report import quantile
from load.simulation.article import ARTICLE, CHUNKS, request
from load.trace import Answer, Request
from services.scheduling import Knobs, RequestLevelScheduler

HELP = "an article's comparison: static batches, Orca, and prompts in chunks"
USERS = 8
LEAST = 3 * USERS  # requests
SETUPS = {
    "static": Setup(Knobs(USERS), scheduler=RequestLevelScheduler),
    "Orca": Setup(Knobs(USERS)),
    **{f"chunk {chunk}": Setup(Knobs(USERS, token_budget=USERS + chunk)) for chunk in CHUNKS},
}
HERE, BESIDE = "Here", "Relative to Orca, here and in the article"
# those of the article, in its order
COLUMNS = ("output tokens/s", "P50 between tokens, ms", "P99 between tokens, ms", "P99 to the first token, ms")
LONGEST = "longest between tokens, ms"  # with few users, the long prompts are rarer than one gap in a hundred


def measure(bench: Bench) -> Found:
    draws = random.Random(0)
    requests = prompted([request(draws) for _ in range(max(LEAST, round(2 * bench.seconds)))])
    here: Table = {}
    for name, setup in SETUPS.items():
        here[name] = cells(asyncio.run(closed_loop(bench, setup, requests)))
    return Found({HERE: here, BESIDE: _beside(here)})


def plots(found: Found) -> Plots:
    here = found.figures[HERE]
    return {
        "article": [
            Bars("Throughput", "output tokens/s", {name: {"": row[COLUMNS[0]]} for name, row in here.items()}),
            Bars("Pauses in streams", LONGEST, {name: {"": row[LONGEST]} for name, row in here.items()}),
        ]
    }


async def closed_loop(bench: Bench, setup: Setup, requests: Sequence[Request]) -> list[Answer]:
    """USERS users take the requests in order; each sends the next one as soon as it is answered."""
    waiting, answers = iter(requests), list[Answer]()
    async with serving(bench.engine, setup) as server:

        async def user(waiting: Iterator[Request]) -> None:
            for one in waiting:
                answers.append(await server.ask(one))

        async with asyncio.TaskGroup() as users:
            for _ in range(USERS):
                users.create_task(user(waiting))
    return answers


def cells(answers: Sequence[Answer]) -> dict[str, float]:
    """What users got."""
    gaps = [after - before for answer in answers for before, after in pairwise(answer.times)]
    seconds = max(answer.times[-1] for answer in answers) - min(answer.arrived for answer in answers)
    throughput = sum(len(answer.tokens) for answer in answers) / seconds
    first = quantile([answer.ttft for answer in answers], 0.99)
    times = (quantile(gaps, 0.5), quantile(gaps, 0.99), first)
    found = dict(zip(COLUMNS, (throughput, *(1e3 * time for time in times)), strict=True))
    return found | {LONGEST: 1e3 * max(gaps)}


def _beside(here: Table) -> Table:
    """Each figure divided by that of Orca without chunks: here, and in the article."""
    rows: Table = {}
    for name, cells in here.items():
        rows[name] = {}
        for number, column in enumerate(COLUMNS):
            what = column.removesuffix(", ms")
            rows[name][f"{what}, here"] = _over(cells[column], here["Orca"][column])
            rows[name][f"{what}, article"] = ARTICLE[name][number] / ARTICLE["Orca"][number]
    return rows


def _over(value: float, base: float) -> float:
    return value / base if base else 0.0
