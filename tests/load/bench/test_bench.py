"""The benchmarks run. Their figures are not checked: they need a quiet machine."""

from __future__ import annotations

import pytest

from load.bench import __main__ as bench
from load.bench.parts import pool_memory, scheduling
from load.in_process import Setup, run_in_process
from load.workloads import paper
from services.engine.null import NullEngine
from services.errors import EngineLost
from services.messages import EngineFigures, Iteration, IterationResult
from services.pool.server.binaries import choose_server
from services.scheduling import Knobs


@pytest.fixture
def engine() -> NullEngine:
    return NullEngine(EngineFigures("m", 1024, 512, 16, 50_000, "null"))


class LostEngine(NullEngine):
    def run(self, iteration: Iteration) -> IterationResult:
        raise EngineLost(f"in iteration {iteration.step}")


def test_an_engine_that_is_lost_ends_the_run(engine: NullEngine) -> None:
    with pytest.raises(EngineLost, match="in iteration 1"):
        run_in_process(LostEngine(engine.figures), paper(2), Setup(Knobs(4)))


def test_the_scheduler_is_measured_in_increment() -> None:
    for knobs in (Knobs(8), scheduling.everything(8)):
        times = scheduling.measure(8, knobs, iterations=5)
        assert {name: len(values) for name, values in times.items()} == dict.fromkeys(times, 5)


def test_parts_are_found_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"chunking", "scheduling"} <= set(bench.parts())
    with pytest.raises(SystemExit):
        bench.main(["--part", "nothing"])
    assert "'nothing'" in capsys.readouterr().err


async def test_a_request_takes_more_memory_the_longer_it_is() -> None:
    short, long = [await pool_memory.measure(choose_server(), 20, prompt, 16) for prompt in (16, 4096)]
    for name, sizes in (("short", short), ("long", long)):
        empty, waiting, running, _ = sizes
        assert empty.memory < waiting.memory < running.memory, name
        assert empty.counted < waiting.counted, name
    assert long[1].memory - long[0].memory > short[1].memory - short[0].memory
