"""The parts of the engine's bench that call the CUDA kernels, at toy sizes. Run by test_interpreted.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import interpreter  # noqa: F401
import pytest

from load.bench import __main__ as bench
from load.bench import formats, kernels, shapes
from load.bench.timing import Scale

TOY = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40}


@pytest.mark.full
def test_parts_of_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = shapes.TINY
    monkeypatch.setitem(shapes.SHAPES, "tiny", replace(tiny, fields=tiny.fields | TOY))
    monkeypatch.setattr(kernels, "SPEED_ROWS", (1, 3))
    monkeypatch.setattr(kernels, "SLABS", (8,))
    monkeypatch.setattr(formats, "ROWS", (1,))
    monkeypatch.setattr(formats, "CHECKED", (3,))
    monkeypatch.setattr(formats, "FORMATS", {name: formats.FORMATS[name] for name in ("fp8 by output", "nvfp4")})
    told = ["--shape", "tiny", "--device", "cpu", "--dtype", "float32", "--results", str(tmp_path)]
    asked = [argument for part in ("kernels", "bits", "speed", "formats") for argument in ("--part", part)]
    assert bench.main([*told, *asked], Scale(window=0.0001, budget=0.0, row_counts=(1, 8))) == 0
    (results,) = tmp_path.glob("*-cpu-tiny.json")
    parts = json.loads(results.read_text())["parts"]
    assert all(error < 1e-5 for error in parts["kernels"].values())
    assert len(parts["kernels"]) == 5 + 4
    assert all(one["refused"] == [] and len(one["hash"]) == 8 for one in parts["bits"].values())
    assert len(parts["speed"]) == 5 * 2
    assert [(one["format"], one["bits"]) for one in parts["formats"]] == [
        ("fp8 by output", "equal"),
        ("nvfp4", "equal"),
    ]
    assert "hash of its bits" in results.with_suffix(".md").read_text()
