"""An article's comparison of static batches, Orca, and chunked prefill (as in Sarathi).

The article states Llama 70B, H100 and 128 concurrent users, but not the number of GPUs nor the requests.
Assumed are:

- four H100 with tensor parallelism: two would have room for the keys and values of about 85 such requests;
- prompts of 32 to 256 tokens and answers of 30 to 500, the ranges of its example of static batching; one prompt in ten
  has 2,048 tokens, as in its example of a stalled decode;
- users who send the next request as soon as they are answered;
- a token budget of 128 + c per iteration for a chunk of c: a token for each user, and the chunk.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

from actors.knobs import CUDA_TARGET
from load.plots import Line, Panel, draw
from load.report import table
from load.simulation.cost import Partition
from load.simulation.pool import SimulatedPool, Users
from load.simulation.specs import H100_80GB, LLAMA_70B
from load.simulation.world import Policy, Window, World, percentile
from load.trace import Request
from load.workloads import sized
from services.loop.clock import run_in_virtual_time
from services.progress import Bar

HELP = "static batches, Orca, and chunked prefill at several token budgets"
PARTITION = Partition(LLAMA_70B, H100_80GB, ranks=4)
USERS = 128
LONG_PROMPT, LONG_SHARE = 2048, 0.1
CHUNKS = (512, 256, 128)
BUDGETS = (160, 192, 256, 384, 512, 768, 1024, 2048, 4096)

# Output tokens/s, P50 and P99 of the time between tokens, P99 of the time to first token (ms), from the article.
ARTICLE = {
    "static": (1200, 45, 850, 3200),
    "Orca": (2800, 38, 420, 1800),
    "chunk 512": (2650, 40, 85, 2100),
    "chunk 256": (2550, 42, 65, 2400),
    "chunk 128": (2400, 44, 55, 2800),
}


@dataclass(frozen=True, slots=True)
class Scale:
    """The seconds of the warm-up and of the measurement, and seeds of other draws of requests."""

    warm_up: float = 30.0
    seconds: float = 40.0
    seeds: tuple[int, ...] = (1, 2)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The throughput in output tokens/s, and times in seconds."""

    throughput: float
    gap_p50: float
    gap_p99: float
    first_p50: float
    first_p99: float


def run(out: Path | None) -> str:
    return report(CHUNKS, BUDGETS, Scale(), out)


def report(chunks: tuple[int, ...], budgets: tuple[int, ...], scale: Scale, out: Path | None) -> str:
    chunked = {f"chunk {chunk}": USERS + chunk for chunk in chunks}
    budgeted = {f"{budget:,}": budget for budget in budgets}
    with Bar(desc="article", total=2 + len(chunked) + len(budgeted), unit="policies") as bar:

        def measured(token_budget: int | None = None, request_level: bool = False) -> Outcome:
            outcome = measure(scale, token_budget, request_level)
            bar.update()
            return outcome

        orca = measured()
        outcomes = {"static": measured(request_level=True), "Orca": orca}
        outcomes |= {name: measured(budget) for name, budget in chunked.items()}
        by_budget = {name: measured(budget) for name, budget in budgeted.items()} | {"none": orca}
    if out:
        draw(out / "article.png", [_panel(by_budget)])
    return (
        f"{LLAMA_70B.name} on {PARTITION.ranks} {H100_80GB.name}, {USERS} users, {PARTITION.num_slots:,} slots.\n\n"
        f"### Simulated\n\n{_table(outcomes | {f'target {CUDA_TARGET} s': with_default_target(scale)})}\n\n"
        f"### Beside the article, relative to Orca\n\n{_ratios(outcomes)}\n\n"
        f"### Other draws of requests\n\n{other_draws(chunks, scale)}\n\n"
        f"### Token budgets\n\n{_table(by_budget)}"
    )


def measure(scale: Scale, token_budget: int | None = None, request_level: bool = False, seed: int = 0) -> Outcome:
    """What the users get with one policy; `seed` draws their requests."""
    policy = Policy(
        USERS,
        PARTITION.num_slots,
        LLAMA_70B.max_model_len,
        token_budget=token_budget,
        request_level=request_level,
    )
    return run_in_virtual_time(_measure(policy, scale, seed))


def with_default_target(scale: Scale) -> Outcome:
    """What the users get with the default time target of a GPU."""
    policy = Policy(USERS, PARTITION.num_slots, LLAMA_70B.max_model_len, tbt_target=CUDA_TARGET, stretch_target=True)
    return run_in_virtual_time(_measure(policy, scale, seed=0))


async def _measure(policy: Policy, scale: Scale, seed: int) -> Outcome:
    pool, draws = SimulatedPool(), random.Random(seed)
    async with World(pool, PARTITION, policy), Users(pool, USERS, lambda: request(draws)):
        await asyncio.sleep(scale.warm_up + scale.seconds)
    window = Window(scale.warm_up, scale.warm_up + scale.seconds)
    gaps, firsts = window.gaps(pool.answers), window.ttfts(pool.answers)
    return Outcome(
        window.token_throughput(pool.answers),
        percentile(gaps, 50),
        percentile(gaps, 99),
        percentile(firsts, 50),
        percentile(firsts, 99),
    )


def request(draws: random.Random) -> Request:
    """The next request of a user."""
    prompt = LONG_PROMPT if draws.random() < LONG_SHARE else draws.randint(32, 256)
    return sized(prompt, draws.randint(30, 500))


# --- tables --------------------------------------------------------------------------------------------------


def _table(outcomes: dict[str, Outcome]) -> str:
    head = ["", "tokens/s", "TBT P50, ms", "TBT P99, ms", "TTFT P50, ms", "TTFT P99, ms"]
    return table(head, [[name, f"{o.throughput:,.0f}", *_milliseconds(o)] for name, o in outcomes.items()])


def _milliseconds(outcome: Outcome) -> list[str]:
    times = (outcome.gap_p50, outcome.gap_p99, outcome.first_p50, outcome.first_p99)
    return [f"{seconds * 1e3:,.1f}" for seconds in times]


def _ratios(outcomes: dict[str, Outcome]) -> str:
    """The figures here and in the article, each divided by that of Orca without chunks."""
    head = ["here, article", "throughput", "TBT P50", "TBT P99", "TTFT P99"]
    figures = {name: (o.throughput, o.gap_p50, o.gap_p99, o.first_p99) for name, o in outcomes.items()}
    rows = []
    for name, here in figures.items():
        pairs = zip(here, figures["Orca"], ARTICLE[name], ARTICLE["Orca"], strict=True)
        rows.append([name, *(f"{a / b:.2f}, {c / d:.2f}" for a, b, c, d in pairs)])
    return table(head, rows)


def other_draws(chunks: tuple[int, ...], scale: Scale) -> str:
    """Orca's throughput without chunks, and its ratio to that with chunks."""
    rows = []
    for seed in scale.seeds:
        orca = measure(scale, seed=seed).throughput
        gains = (measure(scale, USERS + chunk, seed=seed).throughput / orca for chunk in chunks)
        rows.append([seed, f"{orca:,.0f}", *(f"{gain:.2f}" for gain in gains)])
    return table(["seed", "Orca, tokens/s", *(f"chunk {chunk}" for chunk in chunks)], rows)


def _panel(by_budget: dict[str, Outcome]) -> Panel:
    x = [outcome.gap_p99 * 1e3 for outcome in by_budget.values()]
    lines = [Line("budgets " + ", ".join(by_budget), x, [outcome.throughput for outcome in by_budget.values()])]
    return Panel("Llama 70B, token budgets", "P99 time between tokens, ms", "output tokens/s", lines)
