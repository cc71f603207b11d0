"""Every part of the GPU bench runs with a tiny configuration on a CPU. Its figures are not checked."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from load.bench.engine import sampling
from load.bench.gpu import __main__ as gpu_bench
from load.bench.gpu.bench import Budget, GpuScale, PartResult
from load.trace import Request
from load.workloads import paper_lengths, sized

ROW_COUNTS = (1, 32)


def short_lengths(n: int) -> list[Request]:
    return [sized(len(one.prompt) // 8, one.max_new_tokens // 8 + 1) for one in paper_lengths(n)]


SHORT = GpuScale(
    window=0.0001,
    budget=0.0,
    row_counts=ROW_COUNTS,
    steps=4,
    times=1,
    sampler_batches=(3,),
    output=4,
    lengths=short_lengths,
    loads=(0.5, 1.0),
    least=4,
    longest=0.2,
    levels=(1,),
    continuous_tokens=512,
)


def bench(folder: Path, *parts: str, minutes: float = 5.0) -> tuple[int, dict[str, Any]]:
    """Run these parts; returns the exit status and the JSON that was written."""
    asked = [argument for part in parts for argument in ("--part", part)]
    told = [
        "--model",
        "tiny",
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--minutes",
        str(minutes),
        "--results",
        str(folder),
    ]
    status = gpu_bench.main([*told, "--plots", str(folder), *asked], SHORT)
    (out,) = folder.glob("*-cpu-tiny.json")
    return status, json.loads(out.read_text())


def test_the_iterations_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = bench(
        tmp_path,
        "outliving",
        "rates",
        "increments",
        "initiations",
        "mixed",
        "graphs",
        "sampler",
        "shares",
        "section-6.1",
    )
    printed = capsys.readouterr().out
    assert (status, found["failed"]) == (0, {})
    parts = found["parts"]
    assert [rate["rows"] for rate in parts["rates"]["matrix"]] == list(ROW_COUNTS)
    names = {part: [one["name"] for one in parts[part]] for part in ("increments", "initiations", "mixed")}
    assert names == {
        "increments": ["increment, batch 1, context 32", "increment, batch 4, context 32"],
        "initiations": ["initiation, 2 x 32 tokens", "initiation, 4 x 32 tokens"],
        "mixed": ["4 increments at 32, 1 x 32 tokens"],
    }
    for one in parts["increments"] + parts["initiations"]:
        assert one["share"] == pytest.approx(one["floor_seconds"] / one["seconds"])
    assert all(one["ratio"] > 0.0 for one in parts["mixed"])
    assert parts["graphs"] == []
    assert {one["kind"] for one in parts["sampler"]} == {*sampling.KINDS, *sampling.LIMITED, "a mix"}
    assert [(one["prompt"], one["batch"]) for one in parts["section-6.1"]] == [(32, 1), (32, 4), (128, 1), (128, 4)]
    assert (tmp_path / "tiny-section-6.1.png").stat().st_size > 0
    for named in names.values():
        assert all(name in printed for name in named)


def test_both_policies_in_real_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = bench(tmp_path, "section-6.2")
    assert status == 0
    part = found["parts"]["section-6.2"]
    assert [curve["label"] for curve in part["curves"]] == ["request-level 4", "iteration-level 4", "batch of 1"]
    assert all(len(curve["points"]) == 2 and curve["peak"] > 0.0 for curve in part["curves"])
    assert part["missing"] == []
    level, most = part["gains"]
    assert level["latency"] > 0.0
    assert most["ratio"] == pytest.approx(most["iteration-level"] / most["request-level"])
    assert (tmp_path / "tiny-section-6.2.png").stat().st_size > 0
    assert "| any: the most they serve |" in capsys.readouterr().out


def test_transformers_gives_the_same_tokens(tmp_path: Path) -> None:
    status, found = bench(tmp_path, "generate")
    assert (status, found["parts"]["generate"]["failed"]) == (0, {})
    measured = found["parts"]["generate"]["measured"]
    assert {one["system"] for one in measured} == {
        "orca",
        "transformers, generate",
        "transformers, continuous batching",
    }
    assert len(measured) == 6
    for one in measured:
        assert one["same"] == one["requests"] == 6
        assert one["tokens"] == measured[0 if one["workload"] == measured[0]["workload"] else 1]["tokens"]


def test_a_part_that_fails_costs_no_other_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(bench: object) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setitem(gpu_bench.PARTS, "mixed", (fails, ""))
    status, found = bench(tmp_path, "mixed", "rates")
    assert (status, found["failed"], list(found["parts"])) == (1, {"mixed": "RuntimeError: no memory"}, ["rates"])
    assert "Failed: RuntimeError: no memory" in capsys.readouterr().out


def test_no_part_begins_when_the_time_is_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_bench.main(["--model", "tiny", "--device", "cpu", "--minutes", "0", "--part", "rates"]) == 1
    assert "Failed: TimeoutError: the time is spent" in capsys.readouterr().out


def test_a_budget_is_shared_and_spent() -> None:
    now = [10.0]
    budget = Budget(6.0, lambda: now[0])
    now[0] = 12.0
    assert (budget.left, budget.share(2), budget.spent) == (4.0, 2.0, False)
    now[0] = 17.0
    assert (budget.left, budget.spent) == (0.0, True)


def test_a_part_that_takes_too_long_costs_no_other_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(bench: object) -> Any:
        time.sleep(60.0)

    monkeypatch.setattr(gpu_bench, "LIMIT", 0.5)
    monkeypatch.setitem(gpu_bench.PARTS, "mixed", (waits, ""))
    monkeypatch.setitem(gpu_bench.PARTS, "rates", (lambda bench: PartResult("", 1), ""))
    status, found = bench(tmp_path, "mixed", "rates")
    assert (status, list(found["failed"]), found["parts"]) == (1, ["mixed"], {"rates": 1})
    assert found["failed"]["mixed"].startswith("TimeoutError: not done after")
