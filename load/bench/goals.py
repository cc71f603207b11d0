"""`python -m load.bench.goals`: what the serving plane costs, beside its goals. All parts take turns in each round.

Each part starts servers of its own and stops them, so that each runs alone. `--json FILE` adds what is measured to
FILE; the tables are of all rounds in it, so that parts can be measured one by one. With `--vllm-python PATH`, vLLM's
server is measured too.
"""

from __future__ import annotations

import itertools
import json
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from load.bench import beside_vllm
from load.bench.figures import Figures, cell, report, values
from load.bench.parts import gaps, over_http, plane, recovery, start
from load.options import Options, add_model, add_numerics
from load.options import parser as part_parser
from load.report import machine, table
from services.progress import Bar

PARTS = {"over_http": over_http, "plane": plane, "gaps": gaps, "recovery": recovery, "start": start}
VLLM = "vllm"

Rounds = dict[str, list[Figures]]  # by part


@dataclass(frozen=True, slots=True)
class Place:
    """Where a figure stands: part, table, row, column."""

    part: str
    title: str
    row: str
    column: str

    def of(self, rounds: Rounds) -> list[float]:
        return values(rounds.get(self.part, []), self.title, self.row, self.column)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure, or its ratio to `over`, should be at most or at least. The median counts."""

    what: str
    place: Place
    most: float = float("inf")
    least: float = float("-inf")
    over: Place | None = None

    def row(self, rounds: Rounds) -> list[str] | None:
        """A row of the table of goals; None if it was not measured."""
        found = self.place.of(rounds)
        if found and self.over:
            base = self.over.of(rounds)
            found = [statistics.median(found) / statistics.median(base)] if base else []
        if not found:
            return None
        met = self.least <= statistics.median(found) <= self.most
        bound = f"at most {self.most:,g}" if self.most < float("inf") else f"at least {self.least:,g}"
        return [self.what, bound, cell(found), "yes" if met else "no"]


def _http(workload: str, column: str) -> Place:
    return Place("over_http", over_http.RATES, workload, column)


def _vllm(workload: str) -> Place:
    return Place(VLLM, over_http.RATES, workload, over_http.SERVED)


def _null(streams: int) -> Place:
    return Place("plane", plane.RATES, plane.row(plane.DEFAULT_GATEWAYS, streams), "tokens/s")


def _kill(victim: str) -> Place:
    return Place("recovery", recovery.TITLE, recovery.row(victim, 500), recovery.LONGEST)


GOALS = (
    Goal("`paper` over HTTP, times in process", _http("paper", over_http.RATIO), most=1.10),
    Goal("a lone stream over HTTP, times in process", _http("single", over_http.RATIO), most=1.15),
    Goal("`paper` over HTTP, times vLLM", _http("paper", over_http.SERVED), least=1.35, over=_vllm("paper")),
    Goal("a lone stream over HTTP, times vLLM", _http("single", over_http.SERVED), least=2.2, over=_vllm("single")),
    Goal("null engine, 1 stream, tokens/s", _null(1), least=1_000),
    Goal("null engine, 32 streams, tokens/s", _null(32), least=15_000),
    Goal("null engine, 128 streams, tokens/s", _null(128), least=25_000),
    Goal("null engine, a lone first token, ms", Place("plane", plane.FIRST, plane.FIRST_TOKEN, "median"), most=5),
    Goal(
        "longest gap while a prompt of 6,000 arrives, ms", Place("gaps", gaps.TITLE, gaps.DEFAULT, "longest"), most=250
    ),
    Goal("longest gap, scheduler killed, prompts of 500, s", _kill("scheduler"), most=0.5),
    Goal("longest gap, engine killed, prompts of 500, s", _kill("engine"), most=1.0),
    Goal("command to `ready`, cached, s", Place("start", start.SECONDS, start.READY, start.LATER), most=10),
)


def main(arguments: list[str] | None = None) -> None:
    given = _parser().parse_args(arguments)
    options = Options(given.model, given.device, given.dtype, given.cache_dir)
    rounds = _load(given.json)
    chosen = _chosen(given, options)
    with Bar(total=given.rounds * len(chosen), unit="parts") as bar:
        for number, (name, measure) in itertools.product(range(given.rounds), chosen.items()):
            bar.set_description_str(f"round {number + 1} of {given.rounds}, {name}")
            rounds.setdefault(name, []).append(measure())
            if given.json:
                given.json.write_text(json.dumps(rounds))
            bar.update()
    print(f"Measured on {machine()}.\n\n{report_of(rounds)}", flush=True)


def report_of(rounds: Rounds) -> str:
    """The goals, then the tables of each part."""
    rows = [row for goal in GOALS if (row := goal.row(rounds))]
    sections = [f"## Goals\n\n{table(['', 'goal', 'measured', 'met'], rows)}"]
    abouts = {name: part.ABOUT for name, part in PARTS.items()} | {VLLM: beside_vllm.ABOUT}
    sections += [f"## {name}\n\n{report(about, rounds[name])}" for name, about in abouts.items() if name in rounds]
    return "\n\n".join(sections)


def _chosen(given: Namespace, options: Options) -> Mapping[str, Callable[[], Figures]]:
    """What measures each part that was asked for."""
    known: dict[str, Callable[[], Figures]] = {}
    for name, part in PARTS.items():
        known[name] = partial(part.measure, options)
    if given.vllm_python:
        known[VLLM] = partial(beside_vllm.measure, options, given.vllm_python)
    elif VLLM in (given.part or ()):
        raise SystemExit(f"--part {VLLM} needs --vllm-python PATH")
    return {name: measure for name, measure in known.items() if name in (given.part or known)}


def _load(file: Path | None) -> Rounds:
    return json.loads(file.read_text()) if file and file.exists() else {}


def _parser() -> ArgumentParser:
    abouts = {name: (part.__doc__ or "").partition("\n")[0] for name, part in PARTS.items()}
    parser = part_parser("load.bench.goals", __doc__ or "", abouts | {VLLM: "vLLM's server with the same client"})
    parser.add_argument("--rounds", type=int, default=3, help="0: only print what --json has")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the measured rounds, to which these are added")
    parser.add_argument("--vllm-python", type=Path, metavar="PATH", help="an interpreter that has vLLM")
    add_model(parser)
    add_numerics(parser)
    return parser


if __name__ == "__main__":
    main()
