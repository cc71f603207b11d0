"""The benchmarks run. Their figures are not checked: they need a quiet machine."""

from __future__ import annotations

import pytest

from load.bench import __main__ as bench
from load.bench.parts import policies, scheduling
from load.in_process import Setup, run_in_process
from load.trace import Request
from load.workloads import paper
from services.engine.null import NullEngine
from services.errors import EngineLost
from services.messages import EngineFigures, Iteration, IterationResult
from services.scheduling import Knobs


@pytest.fixture
def engine() -> NullEngine:
    return NullEngine(EngineFigures("m", 1024, 512, 16, 50_000, "null"))


def test_both_policies_give_each_request_its_tokens(engine: NullEngine) -> None:
    requests = paper(12)
    setups = [Setup(Knobs(4), scheduler=policy) for policy in policies.POLICIES.values()]
    runs = [run_in_process(engine, requests, setup) for setup in setups]
    for run in runs:
        assert [len(output) for output in run.outputs] == [request.max_new_tokens for request in requests]
        assert run.iterations >= max(request.max_new_tokens for request in requests)
    assert runs[0].outputs == runs[1].outputs


class LostEngine(NullEngine):
    def run(self, iteration: Iteration) -> IterationResult:
        raise EngineLost(f"in iteration {iteration.step}")


def test_an_engine_that_is_lost_ends_the_run(engine: NullEngine) -> None:
    with pytest.raises(EngineLost, match="in iteration 1"):
        run_in_process(LostEngine(engine.figures), paper(2), Setup(Knobs(4)))


def test_the_policies_table(engine: NullEngine) -> None:
    report = policies.report(engine, {"tiny": [Request([5] * 4, 3), Request([5] * 4, 1), Request([5] * 4, 2)]})
    assert report.startswith("null; max_batch_size 2.")
    assert [line.split(" | ")[:2] for line in report.splitlines()[4:]] == [
        ["| tiny", "iteration-level"],
        ["| tiny", "request-level"],
    ]


def test_the_scheduler_is_measured_in_increment() -> None:
    for knobs in (Knobs(8), scheduling.everything(8)):
        times = scheduling.measure(8, knobs, iterations=5)
        assert {name: len(values) for name, values in times.items()} == dict.fromkeys(times, 5)


def test_parts_are_found_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"policies", "scheduling"} <= set(bench.parts())
    with pytest.raises(SystemExit):
        bench.main(["--part", "nothing"])
    assert "'nothing'" in capsys.readouterr().err
