"""The whole bench runs on a tiny model. Its figures are not checked: they need a quiet machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_models import make_tiny_model

from load.bench.engine import __main__ as engine_bench
from load.bench.engine.batches import RecordingEngine
from load.bench.engine.floor import Span
from load.bench.engine.rates import KERNEL, measure_rates, ways
from load.bench.engine.sampling import KINDS, LIMITED
from load.bench.engine.timing import Scale
from load.workloads import paper
from services.engine.null import NullEngine
from services.messages import EngineFigures, Iteration, NewRequest
from services.requests import SamplingParams

SHORT = Scale(
    window=0.0001,
    budget=0.0,
    row_counts=(1, 32),
    steps=4,
    times=1,
    sampler_batches=(3, 8),
    scoring_rounds=1,
    trace=paper(34),
)


def test_the_whole_on_a_tiny_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_tiny_model(tmp_path / "tiny", max_position_embeddings=1024)
    out = tmp_path / "out.json"
    engine_bench.main(["--model", str(folder), "--device", "cpu", "--dtype", "float32", "--json", str(out)], SHORT)
    printed = capsys.readouterr().out
    found = json.loads(out.read_text())
    measured = {phase["name"]: phase for phase in found["phases"]}
    assert {
        "single",
        "single: increment at batch 1",
        "increment, batch 1, context 512",
        "increment, batch 32, context 512",
        "initiation, 1 x 512 tokens",
        "initiation, 4 x 512 tokens",
        "paper",
        "paper: increment at batch 32",
    } <= set(measured)
    for name, phase in measured.items():
        assert name in printed
        assert phase["floor_seconds"] > 0.0
        assert phase["seconds"] > 0.0
    assert measured["single"]["iterations"] == 128
    assert sum(found["shares"]["classes"].values()) == pytest.approx(1.0)
    assert found["shares"]["classes"]["attention"] > 0.0
    whole, *others = found["perplexities"]
    assert (whole["weights"], whole["cache"]) == ("float32", "float32")
    assert all(abs(other["value"] / whole["value"] - 1.0) < 0.05 for other in others)
    assert {(one["kind"], one["batch"]) for one in found["sampling"]} == {
        (kind, batch) for kind in [*KINDS, *LIMITED, "a mix"] for batch in (3, 8)
    }
    assert all(one["seconds"] > 0.0 for one in found["sampling"])
    assert all(one["iteration"] > 0.0 for one in found["sampling"])
    assert "| a mix | 8 |" in printed
    assert [(one["asked"], one["tokens"]) for one in found["scoring"]] == [(n, 512) for n in (None, 0, 1, 20)]
    assert "| 20 | 512 |" in printed


def test_the_measured_rates_are_plausible() -> None:
    """Any machine moves more than 10 MB and less than 100 TB per second, and so on."""
    rates = measure_rates(torch.device("cpu"), torch.float32, 256, 512, 1 << 22, SHORT)
    assert 1e7 < rates.bandwidth < 1e14
    assert [rate.rows for rate in rates.matrix] == [1, 32]
    assert all(1e6 < rate.operations < 1e15 for rate in rates.matrix)
    assert rates.read == 1 << 22


def test_the_engines_kernel_is_measured_but_is_no_rate_of_the_machine() -> None:
    rates = measure_rates(torch.device("cpu"), torch.float32, 256, 512, 1 << 22, SHORT)
    for rate in rates.matrix:
        assert KERNEL in rate.reached
        assert not rate.way.startswith(KERNEL)
        assert rate.operations >= max(value for name, value in rate.reached.items() if name != KERNEL)


def test_all_ways_to_multiply_give_the_same_product() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        rows, weight = torch.randn(5, 32, dtype=dtype), torch.randn(48, 32, dtype=dtype)
        with torch.inference_mode():
            for way in ways(torch.device("cpu"), dtype, dtype).values():
                torch.testing.assert_close(way(rows, weight)().to(dtype), rows @ weight.t(), rtol=2e-2, atol=2e-1)


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
