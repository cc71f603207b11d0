"""Tokens of quantized folders equal those of `generate()` on the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from family_check import STOCK, check_family
from folders import quantize_folder
from written import WRITERS

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.engine import Engine


@pytest.mark.parametrize(
    ("name", "fast_path"),
    [(name, True) for name in ("gptq", "gptq, act-order", "awq", "fp8, blocks", "compressed, int8")]
    + [(name, False) for name in ("awq", "compressed, fp8")],
)
def test_tokens_equal_generate(name: str, fast_path: bool, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    quantized, numbers = quantize_folder(tiny_model("llama"), tmp_path, *WRITERS[name])
    engine = check_family(quantized, replace(STOCK, fast_path=fast_path), reference=numbers)
    assert engine.figures.numerics.endswith("native") == fast_path
    if fast_path:
        assert (_packed(engine) is not None) == (name in ("gptq", "awq", "compressed, int8")), "executed as stored"


def _packed(engine: Engine) -> object:
    """The format of a product's integers; None if it is kept as numbers."""
    assert isinstance(engine.decoder, CpuDecoder)
    return engine.decoder._packed.layers[0].output.groups


def test_modules_that_were_not_converted(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Of products that the engine fuses, one is quantized and one is not."""
    quantized, numbers = quantize_folder(tiny_model("qwen3"), tmp_path, *WRITERS["gptq"], kept="k_proj")
    check_family(quantized, replace(STOCK, fast_path=True), reference=numbers)
