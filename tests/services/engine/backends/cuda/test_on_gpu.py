"""What only a device can show; equal tokens and equal bits are in test_families.py and test_invariance.py."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from driver import Driver, Job
from family_check import make_jobs

from services.engine.batch.flat_batch import pack_batch
from services.engine.batch.request_state import RequestState
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.engine.startup import devices
from services.requests import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SETTINGS = EngineSettings(device="cuda", dtype="bfloat16", kv_blocks=2000)


def increments(count: int, block_size: int, longest: int = 200) -> list[tuple[RequestState, int]]:
    """Requests of random lengths that have one token to go; their blocks hold whatever is there."""
    rng = random.Random(count)
    rows, blocks = [], 0
    for i in range(count):
        length = rng.randint(1, longest)
        row = RequestState(str(i), [rng.randrange(200) for _ in range(length)], length, SamplingParams(9), length - 1)
        row.blocks.extend(range(blocks, blocks := blocks + -(-length // block_size)))
        rows.append((row, 1))
    return rows


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gemma4_text", "gpt_oss"])
def test_graphs_are_bitwise_as_their_kernels(family: str, tiny_model: Callable[[str], Path]) -> None:
    """For every batch size that has a graph."""
    decoder = Engine.load(tiny_model(family), SETTINGS).decoder
    graphs = decoder.graphs
    for size in (1, 2, 4, 8, 16, 32, 112, 128, 256):
        batch = pack_batch(increments(size, 16, longest=100), 16)
        with torch.inference_mode():
            decoder.graphs = graphs
            replayed = decoder.forward(batch).clone()
            decoder.graphs = None
            assert torch.equal(decoder.forward(batch), replayed)
            assert replayed.isfinite().all()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma4_text", "gpt_oss", "qwen2_moe"])
def test_the_host_waits_for_nothing_in_forward(family: str, tiny_model: Callable[[str], Path]) -> None:
    engine = Engine.load(tiny_model(family), SETTINGS)
    prompt = RequestState("p", list(range(1, 90)), 89, SamplingParams(9), blocks=array("i", range(1000, 1006)))
    batches = [
        pack_batch(scheduled, 16)
        for scheduled in ([(prompt, 89)], increments(5, 16), [*increments(3, 16), (prompt, 30)])  # of each kind
    ]
    with torch.inference_mode():
        for batch in batches:
            engine.decoder.forward(batch)  # compiles
        torch.cuda.synchronize()
        with no_waiting():
            for batch in batches:
                engine.decoder.forward(batch)


@pytest.mark.parametrize(
    "name", ["gptq", "awq", "fp8 by output", "fp8 of blocks", "mxfp8", "mxfp4", "nvfp4", "Q8_0", "Q4_K", "Q6_K"]
)
def test_products_by_codes_have_the_bits_of_the_widened_weights(name: str) -> None:
    """At every number of rows where the tile changes; the smallest ones of tensor cores, too."""
    from check_codes import LAYOUTS

    from services.engine.backends.cuda.coded import encode
    from services.engine.backends.cuda.kernels.product import ANCHOR, multiply
    from services.engine.backends.cuda.products import Products
    from services.engine.families.decoder_weights import Linear

    weight, device = LAYOUTS[name][0], torch.device("cuda")
    linear, numbers = encode(Linear(weight), device), Linear(weight.dequantize().to(device))
    assert linear
    x = torch.randn(300, weight.shape[1], device=device).bfloat16()
    expected = multiply(x, numbers, torch.float32, ANCHOR)
    for rows in (1, 16, 17, 33, 300) if name == "awq" else (1, 20):
        assert torch.equal(Products()(x[:rows], linear, torch.float32), expected[:rows])


def test_what_loading_has_left_counts_as_free() -> None:
    device = torch.device("cuda")
    before = devices.free_bytes(device)
    torch.empty(1 << 30, dtype=torch.uint8, device=device)  # its memory stays with torch
    assert devices.free_bytes(device) >= before


@contextmanager
def no_waiting() -> Iterator[None]:
    """Within, whatever makes the host wait for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_tokens_are_the_same_with_graphs_and_without(tiny_model: Callable[[str], Path]) -> None:
    """A run of many iterations, some of which are graphs and some not, in float32."""
    engine = Engine.load(tiny_model("llama"), EngineSettings(device="cuda", dtype="float32", kv_blocks=200))
    jobs = Driver(engine, random.Random(1)).run(make_jobs(random.Random(7)))
    engine.decoder.graphs = None
    again: list[Job] = Driver(engine, random.Random(2)).run(make_jobs(random.Random(7)))
    assert [job.output for job in again] == [job.output for job in jobs]
