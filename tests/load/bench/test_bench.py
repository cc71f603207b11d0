"""The parts of the engine's bench run with a tiny shape on a CPU. Their figures are not checked."""

from __future__ import annotations

import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from marked import full
from tiny_models import make_tiny_model

from load.bench import __main__ as bench_command
from load.bench.batches import RecordingEngine
from load.bench.bench import CUT, Bench, Budget, PartResult
from load.bench.drafts import drafts
from load.bench.floor import Span
from load.bench.rates import KERNEL, measure_rates
from load.bench.sampling import KINDS
from load.bench.shapes import FORMATS, SHAPES
from load.bench.timing import Scale
from load.options import CACHE, Options
from load.workloads import paper
from services.engine.null import NullEngine
from services.engine.weights.random_tensors import RandomTensors
from services.messages import EngineFigures, Iteration, NewRequest
from services.requests import SamplingParams

CPU = torch.device("cpu")
SHORT = Scale(
    window=0.0001,
    budget=0.0,
    row_counts=(1, 32),
    steps=4,
    times=1,
    sampler_batches=(3, 8),
    drafted=(2,),
    streams=3,
    kills=2,
    trace=paper(34),
)


def bench(
    folder: Path, *parts: str, model: tuple[str, str] = ("--shape", "tiny"), more: tuple[str, ...] = ()
) -> tuple[int, dict[str, Any]]:
    """Run these parts; returns the exit status and the JSON that was written."""
    asked = [argument for part in parts for argument in ("--part", part)]
    told = [*model, *more, "--device", "cpu", "--dtype", "float32", "--results", str(folder)]
    status = bench_command.main([*told, *asked], SHORT)
    (out,) = folder.glob("*-cpu-*.json")
    return status, json.loads(out.read_text())


def test_a_shape_with_random_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "rates", "increments", "initiations", "mixed", "sampler", "loop"
    status, found = bench(tmp_path, *asked)
    printed = capsys.readouterr().out
    assert (status, found["failed"]) == (0, {})
    parts = found["parts"]
    assert [rate["rows"] for rate in parts["rates"]["matrix"]] == [1, 32]
    names = {part: [one["name"] for one in parts[part]] for part in ("increments", "initiations", "mixed")}
    assert names == {
        "increments": ["increment, batch 1, context 32", "increment, batch 4, context 32"],
        "initiations": ["initiation, 2 x 32 tokens", "initiation, 4 x 32 tokens"],
        "mixed": ["4 increments at 32, 1 x 32 tokens"],
    }
    for one in parts["increments"] + parts["initiations"]:
        assert one["share"] == pytest.approx(one["floor_seconds"] / one["seconds"])
    assert all(one["ratio"] > 0.0 for one in parts["mixed"])
    assert {(one["kind"], one["batch"]) for one in parts["sampler"]} == {
        (kind, batch) for kind in [*KINDS, "a mix"] for batch in (3, 8)
    }
    assert [one["name"] for one in parts["loop"]] == ["loop", "loop: increment at batch 32"]
    assert all(name in printed for named in names.values() for name in named)


@pytest.mark.full  # test_killed_engines.py has what it measures
def test_engines_are_taken_over_when_they_are_killed(tmp_path: Path) -> None:
    """Outputs are compared inside."""
    status, found = bench(tmp_path, "takeover")
    part = found["parts"]["takeover"]
    assert (status, part.get("failed")) == (0, None)
    assert [kill["in"] for kill in part["kills"]] == ["increments", "a long prompt"]
    assert all(kill["blocks kept"] > 0 < kill["longest gap"] for kill in part["kills"])
    assert part["wrong"] == part["lost"] == part["wrong with a spare"] == []
    assert part["watched"]["blocks"] > 0
    assert not part["watched"]["changed afterwards"]


@pytest.mark.full  # test_drafts.py of the engine has what it measures
def test_drafts(tmp_path: Path) -> None:
    """Outputs are compared inside."""
    folder = make_tiny_model(tmp_path / "tiny", max_position_embeddings=4096)
    status, found = bench(tmp_path, "drafts", model=("--model", str(folder)))
    assert (status, found["failed"]) == (0, {})
    cells = {one["drafts"]: one for one in found["parts"]["drafts"]}
    assert list(cells) == ["0 right", "0.5 right", "0.9 right", "1 right", "editing", "summary", "chat", "schema"]
    assert all(one["streams"] == 2 for one in cells.values())
    assert cells["0 right"]["right"] == 0 < cells["1 right"]["right"] == cells["1 right"]["drafted"]
    assert cells["editing"]["least"] == "0.97"  # other gains are those of other numbers of streams


def test_cells_of_drafts_are_printed_as_they_end_and_kept_when_the_time_is_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = Options(shape="tiny", device="cpu", dtype="float32")
    ticks = itertools.count()
    found = drafts(Bench(options, Budget(700, lambda: next(ticks)), SHORT))  # a cell has some 500 iterations
    assert [one["drafts"] for one in found.data] == ["0 right"]
    assert "0 right" in (printed := capsys.readouterr().out)
    assert found.text.startswith(printed)
    assert CUT in found.text


@pytest.mark.parametrize("form", ["gptq", *full([*(form for form in FORMATS if form != "gptq"), "Q4_K_M"])])
def test_a_shape_in_a_format(form: str, tmp_path: Path) -> None:
    (tmp_path / "kernels").symlink_to(CACHE / "kernels")
    status, found = bench(tmp_path, "increments", more=("--format", form, "--cache-dir", str(tmp_path)))
    assert (status, found["failed"]) == (0, {})
    assert found["model"] == f"tiny-{form}"
    assert found["parts"]["increments"][0]["floor_seconds"] > 0.0


def test_a_format_needs_a_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench(tmp_path, "increments", model=("--model", "any"), more=("--format", "fp8"))
    assert "give --shape" in capsys.readouterr().err


def test_a_model_in_a_folder(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "tiny", max_position_embeddings=1024)
    status, found = bench(tmp_path, "single", "increments", "paper", model=("--model", str(folder)))
    assert (status, found["failed"]) == (0, {})
    measured = {one["name"]: one for part in found["parts"].values() for one in part}
    assert {
        "single",
        "single: increment at batch 1",
        "increment, batch 1, context 512",
        "increment, batch 32, context 512",
        "paper",
        "paper: increment at batch 32",
    } <= set(measured)
    assert all(one["floor_seconds"] > 0.0 and one["goal"] is None for one in measured.values())
    assert measured["single"]["iterations"] == 128


def test_a_part_that_fails_costs_no_other_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(bench: object) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setitem(bench_command.PARTS, "mixed", (fails, ""))
    status, found = bench(tmp_path, "mixed", "rates")
    assert (status, found["failed"], list(found["parts"])) == (1, {"mixed": "RuntimeError: no memory"}, ["rates"])
    assert "Failed: RuntimeError: no memory" in capsys.readouterr().out


def test_a_part_that_takes_too_long_costs_no_other_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(bench: object) -> Any:
        time.sleep(60.0)

    monkeypatch.setitem(bench_command.PARTS, "mixed", (waits, ""))
    monkeypatch.setitem(bench_command.PARTS, "rates", (lambda bench: PartResult("", 1), ""))
    status, found = bench(tmp_path, "mixed", "rates", more=("--limit", "0.5"))
    assert (status, list(found["failed"]), found["parts"]) == (1, ["mixed"], {"rates": 1})
    assert found["failed"]["mixed"].startswith("TimeoutError: not done after")


def test_no_part_begins_when_the_time_is_spent(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_command.main(["--shape", "tiny", "--device", "cpu", "--minutes", "0", "--part", "rates"]) == 1
    assert "Failed: TimeoutError: the time is spent" in capsys.readouterr().out
    now = [10.0]
    budget = Budget(6.0, lambda: now[0])
    now[0] = 12.0
    assert (budget.left, budget.spent) == (4.0, False)
    now[0] = 17.0
    assert (budget.left, budget.spent) == (0.0, True)


def test_the_measured_rates_are_plausible_and_not_those_of_the_engines_kernel() -> None:
    """Any machine moves more than 10 MB and less than 100 TB per second, and so on."""
    rates = measure_rates(CPU, torch.float32, 256, 512, 1 << 22, SHORT)
    assert 1e7 < rates.bandwidth < 1e14
    assert rates.read == 1 << 22
    assert [rate.rows for rate in rates.matrix] == [1, 32]
    for rate in rates.matrix:
        assert 1e6 < rate.operations < 1e15
        assert KERNEL in rate.reached
        assert not rate.way.startswith(KERNEL)
        assert rate.operations >= max(value for name, value in rate.reached.items() if name != KERNEL)


def test_a_recording_engine_knows_contexts_and_which_requests_sample() -> None:
    recording = RecordingEngine(NullEngine(EngineFigures("m", 1024, 64, 16, 100, "null")))
    recording.reset("e")
    sampling = SamplingParams(8)
    recording.run(Iteration("e", 0, {"a": 3}, [NewRequest("a", [5] * 5, 5, sampling)], {"a": [0]}))
    known = NewRequest("b", [5] * 17, 17, sampling, num_computed_tokens=16)
    recording.run(Iteration("e", 1, {"a": 2, "b": 1}, [known], {"b": [1, 2]}))
    recording.run(Iteration("e", 2, {"b": 1}, released=["a"]))
    assert [ran.spans for ran in recording.ran] == [
        (Span(0, 3, False),),
        (Span(3, 2, True), Span(16, 1, True)),
        (Span(17, 1, True),),
    ]
    assert [ran.is_increment for ran in recording.ran] == [False, False, True]


@pytest.mark.parametrize(
    ("name", "billions"), [("smollm2-135m", 0.1345), ("llama-1b", 1.07), ("llama-3b", 3.21), ("llama-3-8b", 8.03)]
)
def test_the_shapes_are_as_large_as_they_say(name: str, billions: float) -> None:
    plan = SHAPES[name]
    tensors = RandomTensors(plan.config(), torch.bfloat16, CPU)
    assert sum(map(math.prod, tensors._shapes.values())) / 1e9 == pytest.approx(billions, rel=0.005)
    assert ("lm_head.weight" in tensors) == (name == "llama-3-8b")  # the others' vocabulary is their embedding
    assert max(plan.contexts) < plan.max_model_len
