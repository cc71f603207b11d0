"""The comparison of quantised products runs on a tiny shape. Its times are not checked: they need a quiet machine."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from load.bench.engine.quantized_products import own
from load.bench.engine.quantized_products.__main__ import BASE, compare, main
from load.bench.engine.quantized_products.cases import Case, Shape, exact
from load.bench.engine.quantized_products.measure import Scale
from load.bench.engine.quantized_products.ways import Product, copies, last_cache

TINY = Shape("tiny", 128, 256)
SHORT = Scale(row_counts=(1, 8, 12), rounds=2, window=0.0)


def test_all_ways_of_a_tiny_shape_are_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    main(["--json", str(out)], [TINY], SHORT)
    found, printed = json.loads(out.read_text())["tiny"], capsys.readouterr().out
    assert own.WAYS.keys() <= found.keys()
    for name, one in found.items():
        assert printed.count(f"| {name} |") == 3, "a row in each table"
        assert 0.0 < one["mean_error"] <= one["largest_error"] < 0.2, f"{name} multiplies by other weights"
        assert {count: len(seconds) for count, seconds in one["seconds"].items()} == {"1": 2, "8": 2, "12": 2}
        assert all(one > 0.0 for seconds in one["seconds"].values() for one in seconds)


def test_our_kernels_give_a_row_the_same_bits_and_read_the_bytes_of_the_format() -> None:
    found, _ = compare(TINY, SHORT, own.WAYS)
    assert all(not found[name].differing for name in own.WAYS)
    weights = TINY.inputs * TINY.outputs
    bits = {
        "bfloat16": 16,
        "Q4_1": 5,
        "GPTQ": 4 + 16 / 128,
        "MXFP4": 4.5,
        "NVFP4": 6,
        "Q8_0": 8.5,
        "FP8": 8.25,
        "`int8`": 8.25,
    }
    assert {name.removeprefix("Orca, "): found[name].bytes * 8 / weights for name in own.WAYS} == bits


def test_bits_that_depend_on_the_other_rows_are_found() -> None:
    def scaled_by_all_rows(case: Case) -> Product:
        weight = exact(case.weights["bfloat16"]).to(torch.float32)

        def multiply(rows: torch.Tensor) -> torch.Tensor:
            largest = rows.abs().max()
            return (rows / largest) @ weight.t() * largest

        return Product(case.weights["bfloat16"], weight.nbytes, torch.float32, lambda: multiply)

    found, _ = compare(TINY, SHORT, {"scaled": scaled_by_all_rows})
    assert 1 in found["scaled"].differing


def test_a_way_that_is_slow_is_not_measured_at_larger_row_counts() -> None:
    found, _ = compare(TINY, replace(SHORT, slowest=0.0), {BASE: own.WAYS[BASE]})
    assert list(found[BASE].seconds) == [1]


def test_copies_exceed_the_last_cache() -> None:
    assert 1 << 20 <= last_cache() <= 1 << 31
    assert [copies(size, 32 << 20) for size in (1 << 20, 60 << 20, 64 << 20, 80 << 20)] == [64, 2, 1, 1]


def test_a_shape_that_a_format_cannot_have_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--shape", "100x256"])
    assert "100x256 is not INPUTSxOUTPUTS with multiples of 64 and 32" in capsys.readouterr().err


def test_a_driver_without_its_package_is_an_error() -> None:
    with pytest.raises(SystemExit, match=r"of_gptqmodel.py ended with code 1"):
        main(["--gptqmodel-python", sys.executable], [TINY], SHORT)
