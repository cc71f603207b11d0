"""Prefix caching on and off: a shared system prompt, several answers to one prompt, the turns of chats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from load.bench.knobs import Oracle, agreement, increment_seconds
from load.in_process import Engine, InProcess, Setup, serving
from load.options import Options, load_exact_engine
from load.report import in_turn, spread, table
from load.stock import oracle
from load.trace import Answer, Request, Run
from load.workloads import any_prompt
from services.metrics.counters import total
from services.scheduling import Knobs

Users = Callable[[InProcess], Awaitable[list[Answer]]]  # send all their requests


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens of the `system` prompt that all share, of a chat's own, of a `question` and of an `answer`; and how many
    requests there are."""

    system: int = 512
    chat_system: int = 128
    question: int = 48
    answer: int = 16
    questions: int = 8
    choices: int = 8
    chats: int = 3
    turns: int = 4
    rounds: int = 2


def run(options: Options) -> str:
    return report(load_exact_engine(options), oracle(options), Size())


def report(engine: Engine, check: Oracle | None, size: Size) -> str:
    increment_seconds(engine, 4)  # warm up
    system = any_prompt(size.system, 0)
    questions = [
        Request(system + any_prompt(size.question, seed), size.answer) for seed in range(1, size.questions + 1)
    ]
    choices = [Request(any_prompt(size.system, 999), size.answer)] * size.choices
    workloads: dict[str, Users] = {
        f"{size.questions} questions after {size.system} tokens in common": partial(all_at_once, questions),
        f"{size.choices} answers to one prompt of {size.system} tokens": partial(all_at_once, choices),
        f"{size.chats} chats of {size.turns} turns": partial(chats, size),
    }
    rows, words = [], []
    for name, users in workloads.items():
        variants = {how: partial(measure, engine, users, caching) for how, caching in (("no", False), ("yes", True))}
        runs = in_turn(variants, size.rounds)
        words.append(f"{name}: {agreement(engine, runs, check, 2)}")
        rows += [[name, how, *cells(rounds)] for how, rounds in runs.items()]
    head = ["workload", "caching", "TTFT, s", "last TTFT, s", "output tokens/s", "tokens computed", "hit rate"]
    return (
        f"{engine.figures.numerics}; questions of {size.question} tokens, answers of {size.answer}; {size.rounds} "
        f"rounds in turn, medians.\n\n{table(head, rows)}\n\n" + "\n".join(f"- {line}" for line in words)
    )


def measure(engine: Engine, users: Users, caching: bool) -> Run:
    return asyncio.run(_measure(engine, users, Setup(Knobs(8, prefix_caching=caching))))


async def _measure(engine: Engine, users: Users, setup: Setup) -> Run:
    async with serving(engine, setup) as server:
        answers = await users(server)
    return await server.summary(answers)


async def all_at_once(requests: Sequence[Request], server: InProcess) -> list[Answer]:
    return await asyncio.gather(*map(server.ask, requests))


async def chats(size: Size, server: InProcess) -> list[Answer]:
    """Chats that ask the next question once the last one is answered; the prompt is the whole chat so far."""
    done = await asyncio.gather(*(_chat(size, seed, server) for seed in range(size.chats)))
    return [answer for answers in done for answer in answers]


async def _chat(size: Size, seed: int, server: InProcess) -> list[Answer]:
    chat, answers = any_prompt(size.chat_system, 1000 + seed), []
    for turn in range(size.turns):
        chat = chat + any_prompt(size.question, 2000 + seed * size.turns + turn)
        answers.append(await server.ask(Request(chat, size.answer)))
        chat = chat + answers[-1].tokens
    return answers


def cells(runs: Sequence[Run]) -> list[str]:
    first = [answer.ttft for run in runs for answer in run.answers]
    queries = sum(total(run.counters, "vllm:prefix_cache_queries") for run in runs)
    return [
        f"{median(first):.2f}",
        f"{max(first):.2f}",
        spread([run.throughput for run in runs]),
        f"{median(sum(ran.computed for ran in run.ran) for run in runs):,.0f}",
        f"{sum(run.hits for run in runs) / queries:.0%}",
    ]
