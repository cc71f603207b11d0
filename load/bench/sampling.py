"""What sampling costs, compared with an iteration of the model."""

from __future__ import annotations

import random
import statistics
from functools import partial
from itertools import product
from typing import Any

import torch

from load.bench.batches import Batches
from load.bench.bench import Bench, PartResult
from load.bench.timing import device_seconds, seconds_of
from load.report import table
from services.engine.batch.request_state import RequestState
from services.engine.sampling.batched_sampler import Batch, launch
from services.engine.sampling.output import SamplerOutput
from services.engine.sampling.sampler import Sampler
from services.requests import SamplingParams

CONTEXT = 128  # tokens of each request of the iteration, and of the prompts that penalties read
OUTPUT = 384  # output tokens that penalties read
STEPS = 4  # increment iterations, the first of which is not counted
LOGITS = {  # their standard deviation, and the largest lead of the likeliest token
    "a model's": (3.2, 8.0),
    "flat": (0.6, 0.0),  # as those of random weights
}

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top_k 50": {"top_k": 50},
    "top_p 0.95": {"top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "temperature 1": {},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "logprobs 5": {"temperature": 0.0, "logprobs": 5},
}


def sampler(bench: Bench) -> PartResult:
    """The time of a call of the sampler for so many requests with each kind of settings, then with a mix of them; on
    CUDA also what of it the device works, without the host. And the share of that in an increment iteration; there is
    none where the batch does not fit."""
    found: list[dict[str, Any]] = []
    vocab, of_engine = bench.engine.figures.vocab_size, bench.engine.sampler
    assert isinstance(of_engine, Sampler), "this model makes no logits"
    mix = {kind: [one] for kind, one in KINDS.items()} | {"a mix": list(KINDS.values())}
    for batch in bench.scale.sampler_batches:
        iteration = _iteration(bench, batch)
        for (name, (deviation, lead)), (kind, several) in product(LOGITS.items(), mix.items()):
            logits = _logits(batch, vocab, deviation, lead).to(bench.device)  # float32, as on the fast path
            rows = _rows(batch, vocab, several)
            with torch.inference_mode():
                call = partial(_sample, of_engine, logits, rows)
                seconds = seconds_of([call], bench.device, bench.scale)
                works = _device_seconds(bench, logits, rows) if bench.device.type == "cuda" else None
            times = {"seconds": seconds, "device": works, "iteration": iteration}
            found.append({"logits": name, "kind": kind, "batch": batch, **times})
    rows_of_table = []
    for one in found:
        works, whole = one["device"], one["iteration"]
        share = (works or one["seconds"]) / whole if whole else None
        beside = [f"{whole * 1e3:,.1f}", f"{share:.1%}"] if whole else ["does not fit", ""]
        device = [f"{works * 1e3:,.3f}"] if works else []
        settings = [one["logits"], one["kind"], one["batch"]]
        rows_of_table.append([*settings, f"{one['seconds'] * 1e3:,.2f}", *device, *beside])
    columns = ["device, ms"] if bench.device.type == "cuda" else []
    header = ["logits", "settings", "requests", "sampler, ms", *columns, "iteration, ms", "share"]
    return PartResult(table(header, rows_of_table), found)


def _device_seconds(bench: Bench, logits: torch.Tensor, rows: list[RequestState]) -> float:
    """The seconds of what a call launches."""
    batch = Batch.from_states(rows, logits.shape[1])
    there = batch.send(logits.shape[1], bench.device)
    return device_seconds([partial(launch, logits, batch, there)], bench.device, bench.scale)


def _iteration(bench: Bench, batch: int) -> float | None:
    """Median seconds of an increment iteration."""
    batches, block = Batches(bench.engine, bench.lookahead), bench.engine.figures.block_size
    context = CONTEXT // block * block
    if not batches.fits(batch, context + STEPS):
        return None
    return statistics.median(one.seconds for one in batches.mixed(batch, context, 0, 0, STEPS)[1:])


def _logits(batch: int, vocab: int, deviation: float, lead: float) -> torch.Tensor:
    """Normally distributed, except for the likeliest token of each request."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, vocab, generator=generator) * deviation
    logits[:, 0] = logits.amax(dim=-1) + torch.rand(batch, generator=generator) * lead
    return logits


def _sample(sampler: Sampler, logits: torch.Tensor, rows: list[RequestState]) -> SamplerOutput:
    return sampler.draw(logits, rows).output.result()


def _rows(batch: int, vocab: int, several: list[dict[str, Any]]) -> list[RequestState]:
    """Requests with these settings in turn, far into their output."""
    draw = random.Random(0)
    rows = []
    for i in range(batch):
        tokens = [draw.randrange(vocab) for _ in range(CONTEXT + OUTPUT)]
        sampling = SamplingParams(**{"max_new_tokens": 2 * OUTPUT, "seed": i, **several[i % len(several)]})
        rows.append(RequestState(str(i), tokens, CONTEXT, sampling))
    return rows
