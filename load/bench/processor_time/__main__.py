"""`python -m load.bench.processor_time`: where the processor time of a server goes while it is idle, serves a lone
stream, and serves 32 streams.

The first table counts all processes and threads (/proc). The others sample the functions, in further runs of the same
loads, because sampling takes processor time too: Python's functions with py-spy, symbols of all libraries and of the
kernel with perf, where they are installed.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from load.bench.processor_time.functions import Perf, PySpy, find
from load.bench.processor_time.threads import Load, read, rows_of, spent
from load.options import add_model, add_numerics
from load.over_http import run_over_http
from load.processes import KINDS, kind_of, title_of
from load.report import machine, table
from load.server import OrcaServer
from load.trace import Request
from load.workloads import any_prompt

PROMPT = 32  # tokens
IDLE = 8.0  # seconds
LEAST = 0.01  # of the time of a load; processes and threads with less are not shown
FUNCTIONS = 6  # shown of each process
SYMBOLS = 16  # shown of each load
WIDTH = 70  # characters of a symbol
MODEL, NULL = {1: 256, 32: 128}, {1: 1024, 32: 512}  # tokens of each stream by the number of streams
NULL_FLAGS = ("--null-engine", "--kv-blocks", "100000")


@dataclass(frozen=True, slots=True)
class Served:
    """A load of so many streams of so many tokens on a server."""

    server: OrcaServer
    streams: int
    tokens: int

    @property
    def name(self) -> str:
        return f"{self.streams} stream{'s' * (self.streams > 1)}"

    def run(self) -> float:
        """Serve it; returns the seconds."""
        requests = [Request(any_prompt(PROMPT, number), self.tokens) for number in range(self.streams)]
        return asyncio.run(run_over_http(self.server.url, requests)).seconds


def main(arguments: list[str] | None = None) -> None:
    given = _parser().parse_args(arguments)
    flags = ["--model", given.model, "--device", given.device, "--dtype", given.dtype, "--no-prefix-caching"]
    flags += NULL_FLAGS if given.null_engine else ()
    with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags, *given.flag) as server:
        lengths = NULL if given.null_engine else MODEL
        loads = [Served(server, streams, tokens) for streams, tokens in lengths.items()]
        loads[-1].run()  # warm up
        print(f"Measured on {machine()}.\n\n{_threads(server, loads)}", flush=True)
        for load in loads:
            seconds = load.run()
            if program := find("py-spy"):
                print(_python(program, load, seconds), flush=True)
            if program := find("perf"):
                print(_native(program, load, seconds), flush=True)


def _threads(server: OrcaServer, loads: list[Served]) -> str:
    found = [_counted(server, "idle, ms in a second", lambda: time.sleep(IDLE), IDLE)]
    for load in loads:
        tokens = load.streams * load.tokens
        found.append(_counted(server, f"{load.name}, ms of a token", load.run, tokens))
    lengths = ", ".join(f"{load.tokens:,} with {load.name}" for load in loads)
    return (
        f"Processor milliseconds by process and thread, without the client's; tokens of a stream: {lengths}. Threads "
        f"with less than {LEAST:.0%} of every load are not shown.\n\n"
        + table(["process", "thread", *(load.name for load in found)], rows_of(found, LEAST))
    )


def _counted(server: OrcaServer, name: str, run: Callable[[], object], units: float) -> Load:
    before = read(_pids(server))
    run()
    return Load(name, spent(before, read(_pids(server))), units)


def _python(program: str, load: Served, seconds: float) -> str:
    """The Python functions of each kind of process, by their share of its samples."""
    pids = [pid for pid in _pids(load.server) if kind_of(title_of(pid)) in ("gateways", "schedulers", "engines")]
    with tempfile.TemporaryDirectory() as folder:
        sampler = PySpy(program, pids, seconds, Path(folder))
        load.run()
        counts = sampler.counts()
    kinds = {kind: sum((counts[pid] for pid in counts if kind_of(title_of(pid)) == kind), Counter()) for kind in KINDS}
    rows = [
        [kind, name, f"{samples / found.total():.0%}"]
        for kind, found in kinds.items()
        for name, samples in found.most_common(FUNCTIONS)
    ]
    return (
        f"\n{load.name}: Python functions with the interpreter's lock, share of their processes' samples (py-spy):\n\n"
        + table(["processes", "function", "share"], rows)
    )


def _native(program: str, load: Served, seconds: float) -> str:
    """The symbols of all processes, by their share of all samples."""
    with tempfile.TemporaryDirectory() as folder:
        sampler = Perf(program, _pids(load.server), seconds, Path(folder))
        load.run()
        found = sampler.symbols()
    rows = [[f"{share:.1f}%", name, library, f"`{symbol[:WIDTH]}`"] for share, name, library, symbol in found[:SYMBOLS]]
    return f"\n{load.name}: symbols of all processes, share of all samples (perf):\n\n" + table(
        ["share", "thread", "library", "symbol"], rows
    )


def _pids(server: OrcaServer) -> list[int]:
    return [server.process.pid, *server.descendants()]


def _parser() -> ArgumentParser:
    parser = ArgumentParser("python -m load.bench.processor_time", description=__doc__)
    parser.add_argument("--null-engine", action="store_true", help="an engine without a model, which answers at once")
    parser.add_argument("--flag", action="append", default=[], metavar="--NAME=VALUE", help="a flag of `orca serve`")
    add_model(parser)
    add_numerics(parser)
    return parser


if __name__ == "__main__":
    main()
