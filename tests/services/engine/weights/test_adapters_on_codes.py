"""Adapters beside weights that run as they are stored."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from driver import Driver
from family_check import make_jobs
from folders import quantize_folder
from peft_adapters import likeliest_with
from test_engine_adapters import FLOAT32, A, B, two_adapters, with_adapters
from written import WRITERS

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.engine import Engine


def test_weights_of_four_bits_have_adapters_too(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    quantized, numbers = quantize_folder(tiny_model("llama"), made, *WRITERS["gptq"])
    adapters = two_adapters(numbers, tmp_path)
    engine = Engine.load(quantized, replace(FLOAT32, adapters=tmp_path))
    assert isinstance(engine.decoder, CpuDecoder)
    assert engine.decoder._packed.layers[0].down.groups is not None
    jobs = with_adapters(make_jobs(random.Random(7), 6), ["", A, B])
    Driver(engine, random.Random(1), 6).run(jobs)
    assert [job.output for job in jobs] == likeliest_with(numbers, adapters, jobs)
