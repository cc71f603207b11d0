"""What only a device can show; equal tokens and equal bits are in test_families.py and test_invariance.py."""

from __future__ import annotations

import random
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import Driver, Job
from family_check import make_jobs
from mixed_requests import WITHOUT_GRAMMARS, mixed

from load.bench.shapes import SHAPES
from services.engine.batch.adjustments import AllowedTokens
from services.engine.batch.flat_batch import pack_batch
from services.engine.batch.request_state import RequestState
from services.engine.engine import Engine
from services.engine.sampling import batched_sampler
from services.engine.settings import MOST_TOKENS, EngineSettings
from services.engine.startup import devices
from services.engine.startup.proof.trial import trial
from services.engine.startup.proof.verdict import BOUNDS
from services.engine.weights.random_tensors import RandomTensors
from services.messages import Iteration, NewRequest
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


@pytest.mark.parametrize(
    "family", ["gemma2", "gemma4_text", "olmo3", "cohere2", "hunyuan_v1_dense", "gpt_oss", "glm4_moe", "qwen2_moe"]
)
def test_logits_in_bfloat16_are_near_those_of_transformers(family: str, tiny_model: Callable[[str], Path]) -> None:
    """Within the bound of the trial that comes before a model is served."""
    assert trial(tiny_model(family), SETTINGS) <= BOUNDS[torch.bfloat16]


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


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"top_p": 0.9, "top_k": 20, "logprobs": 2}])
def test_the_host_waits_for_nothing_before_results_are_read(
    sampling: dict[str, Any], tiny_model: Callable[[str], Path]
) -> None:
    """An iteration of both kinds, and then one that takes tokens of some of its requests from the device."""
    engine = Engine.load(tiny_model("llama"), SETTINGS)
    new = [NewRequest(f"{i}/0", list(range(5, 20 + i)), 15 + i, SamplingParams(9, **sampling)) for i in range(3)]
    place = {one.id: [2 * i, 2 * i + 1] for i, one in enumerate(new)}
    begin = Iteration("e", 1, {"0/0": 15, "1/0": 16}, new[:2], {id: place[id] for id in ("0/0", "1/0")})
    mixed = Iteration("e", 2, {"1/0": 1, "2/0": 17, "0/0": 1}, new[2:], {"2/0": place["2/0"]})
    ahead = Iteration("e", 3, {"2/0": 1, "0/0": 1})

    engine.reset("e")
    expected = [engine.run(one).tokens for one in (begin, mixed, ahead)]  # compiles
    engine.reset("e")
    engine.run(begin)
    with no_waiting():
        started = [engine.start(mixed), engine.start(ahead)]
    assert [one.result().tokens for one in started] == expected[1:]


FAULT = """
import sys, torch
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams

engine = Engine.load(__import__("pathlib").Path(sys.argv[1]), EngineSettings(device="cuda", kv_blocks=20))
engine.reset("e")
new = NewRequest("a/0", [5, 6, 7], 3, SamplingParams(9))
one = engine.start(Iteration("e", 1, {"a/0": 3}, [new], {"a/0": [0, 1]}))
two = engine.start(Iteration("e", 2, {"a/0": 1}))
assert one.result().tokens and two.result().tokens
forward, outside = engine.decoder.forward, torch.tensor([1 << 20], device="cuda")

def bad(batch):
    torch.zeros(4, device="cuda").index_select(0, outside)
    return forward(batch)

engine.decoder.forward = bad
torch.cuda._sleep(400_000_000)
three = engine.start(Iteration("e", 3, {"a/0": 1}))
engine.decoder.forward = forward
four = engine.start(Iteration("e", 4, {"a/0": 1}))
print("launched")
for call in (three.result, four.result, lambda: engine.start(Iteration("e", 5, {"a/0": 1})), lambda: engine.reset("f")):
    try:
        print(call())
    except RuntimeError as error:
        print("fault", three.done())
"""


def test_a_fault_strikes_all_that_was_launched(tiny_model: Callable[[str], Path]) -> None:
    """A kernel that reads outside of its array is launched like any other; no token comes from then on. In a process
    of its own, since no kernel runs after it."""
    ran = subprocess.run([sys.executable, "-c", FAULT, tiny_model("llama")], capture_output=True, text=True)
    assert ran.stdout.split("\n")[:5] == ["launched", *["fault True"] * 4], ran.stdout + ran.stderr[-2000:]


def test_what_loading_has_left_counts_as_free() -> None:
    device = torch.device("cuda")
    devices.free_bytes(device)
    before = torch.cuda.memory_reserved(device)  # what is free depends on the tests beside this one
    torch.empty(1 << 30, dtype=torch.uint8, device=device)  # its memory stays with torch
    assert torch.cuda.memory_reserved(device) > before
    devices.free_bytes(device)
    assert torch.cuda.memory_reserved(device) == before


ROOM = 8 << 30  # bytes


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A device with `ROOM` for this process; other tests run on it at the same time."""
    device = torch.device("cuda")
    total = torch.cuda.mem_get_info(device)[1]
    devices.free_unused()
    torch.cuda.set_per_process_memory_fraction(ROOM / total)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (ROOM - torch.cuda.memory_reserved(device), ROOM))
    yield device
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("fast_path", [True, False])
def test_no_request_exhausts_a_device(fast_path: bool, small: torch.device, tmp_path: Path) -> None:
    """Of which next to nothing is free when the model is loaded: the largest chunks, scored prompts, allowed tokens,
    penalties and log probabilities of a full batch, and other sizes between them."""
    device = small
    shape = SHAPES["llama-1b"]
    config = replace(shape, fields=shape.fields | {"num_hidden_layers": 4, "vocab_size": 128_256}).config()
    config.save_pretrained(tmp_path)
    settings = EngineSettings(
        device="cuda", dtype="bfloat16", fast_path=fast_path, max_model_len=2049, kv_memory_fraction=0.98
    )
    engine = Engine.load(tmp_path, settings, tensors=RandomTensors(config, torch.bfloat16, device))
    engine.reset("e")
    sizes = [(256, 32), (4, 2048), (1, 2000), (100, 80), (256, 32), (4, 2048)]
    assert engine.figures.num_slots >= MOST_TOKENS
    for step, (count, length) in enumerate(sizes):
        new = [demanding(f"{step}/{i}", length, engine.figures.vocab_size) for i in range(count)]
        each = -(-length // engine.figures.block_size)
        blocks = {one.id: list(range(i * each, (i + 1) * each)) for i, one in enumerate(new)}
        scheduled = {one.id: length for one in new}
        released = [f"{step - 1}/{i}" for i in range(sizes[step - 1][0])] if step else []
        result = engine.run(Iteration("e", step, scheduled, new, blocks, released))
        assert set(result.tokens) == set(scheduled)


def demanding(id: str, length: int, vocab: int) -> NewRequest:
    """A request whose settings change all logits, and whose prompt is scored."""
    tokens = [(i * 7919) % vocab for i in range(length)]
    sampling = SamplingParams(
        9,
        temperature=1.0,
        top_p=0.9,
        logprobs=20,
        prompt_logprobs=20,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        allowed_token_ids=tuple(range(5000)),
        logit_bias=dict.fromkeys(range(300), 1.0),
    )
    return NewRequest(id, tokens, length, sampling)


@pytest.mark.parametrize(("kind", "vocab"), [("sharp", 128_256), ("flat", 50_257), ("equal", 50_257)])
def test_it_draws_the_tokens_of_a_cpu(kind: str, vocab: int) -> None:
    """With settings of all kinds, each alone and together; log probabilities to the last digits. Of equal logits no
    list has all that can win."""
    kinds = [one for one in WITHOUT_GRAMMARS if "thinking_token_budget" not in one]  # which needs llguidance
    logits = torch.randn(2 * len(kinds), vocab, generator=torch.Generator().manual_seed(2))
    logits *= {"sharp": 4.0, "flat": 0.2, "equal": 0.0}[kind]
    rows = mixed(len(logits), vocab, kinds)
    expected = batched_sampler.sample(logits, rows)
    for row in rows:
        row.allowed = row.allowed and AllowedTokens(row.allowed.ids, vocab)  # the other's lies on the CPU
    found = batched_sampler.sample(logits.cuda(), rows)
    assert (found.tokens, found.possible, found.sound) == (expected.tokens, expected.possible, expected.sound)
    for i, logit in enumerate(logits):
        alone = batched_sampler.sample(logit[None].cuda(), [rows[i]])
        assert alone.tokens == [found.tokens[i]]
        assert alone.logprobs.get(0) == found.logprobs.get(i)
        if i in expected.logprobs:
            assert found.logprobs[i].token == pytest.approx(expected.logprobs[i].token, abs=1e-12)
            assert [id for id, _ in found.logprobs[i].top] == [id for id, _ in expected.logprobs[i].top]


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
