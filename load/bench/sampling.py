"""What sampling costs, compared with an iteration of the model."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from load.bench.batches import Batches
from load.bench.timing import FULL, Scale, seconds_of
from load.report import table
from services.engine.batch.request_state import RequestState
from services.engine.engine import Engine
from services.requests import SamplingParams

CONTEXT = 128  # tokens of each request of the iteration, and of the prompts that penalties read
OUTPUT = 384  # output tokens that penalties read
STEPS = 4  # increment iterations, the first of which is not counted
LOGITS = (3.2, 8.0)  # like the model's: their standard deviation, and the largest lead of the likeliest token

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top_k 50": {"top_k": 50},
    "top_p 0.95": {"top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "temperature 1": {},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "logprobs 5": {"temperature": 0.0, "logprobs": 5},
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """Seconds of a call of the sampler for `batch` requests, and of an increment iteration of the same number; None
    where they do not fit."""

    kind: str
    batch: int
    vocab: int
    seconds: float
    iteration: float | None


def measure_sampling(engine: Engine, device: torch.device, scale: Scale = FULL) -> Iterator[Sampling]:
    """Each kind of settings for all requests, then a mix of them. The iterations are greedy."""
    vocab = engine.figures.vocab_size
    for batch in scale.sampler_batches:
        iteration = _iteration(engine, batch)
        logits = _logits(batch, vocab).to(device)  # float32, as on the fast path
        alone = {kind: [one] for kind, one in KINDS.items()}
        for kind, several in {**alone, "a mix": list(KINDS.values())}.items():
            rows = _rows(batch, vocab, several)
            with torch.inference_mode():
                seconds = seconds_of([partial(engine.sampler.sample, logits, rows)], device, scale)
            yield Sampling(kind, batch, vocab, seconds, iteration)


def sampling_table(measured: list[Sampling]) -> str:
    """A markdown table. Each row has the time in which the sampler draws a token for each of so many requests with such
    settings, and the share of this time in an iteration of the model, which is empty where the batch does not fit."""
    rows = []
    for one in measured:
        beside = ["does not fit", ""]
        if one.iteration is not None:
            beside = [f"{one.iteration * 1e3:,.1f}", f"{one.seconds / one.iteration:.1%}"]
        rows.append([one.kind, one.batch, f"{one.seconds * 1e3:,.2f}", *beside])
    return table(["settings", "requests", "sampler, ms", "iteration, ms", "share"], rows)


def _iteration(engine: Engine, batch: int) -> float | None:
    """Median seconds of an increment iteration."""
    batches, block = Batches(engine), engine.figures.block_size
    context = CONTEXT // block * block
    if not batches.fits(batch, context + STEPS):
        return None
    return statistics.median(one.seconds for one in batches.mixed(batch, context, 0, 0, STEPS)[1:])


def _logits(batch: int, vocab: int) -> torch.Tensor:
    """Normally distributed, except for the likeliest token of each request."""
    generator = torch.Generator().manual_seed(0)
    deviation, lead = LOGITS
    logits = torch.randn(batch, vocab, generator=generator) * deviation
    logits[:, 0] = logits.amax(dim=-1) + torch.rand(batch, generator=generator) * lead
    return logits


def _rows(batch: int, vocab: int, several: list[dict[str, Any]]) -> list[RequestState]:
    """Requests with these settings in turn, far into their output."""
    draw = random.Random(0)
    rows = []
    for i in range(batch):
        tokens = [draw.randrange(vocab) for _ in range(CONTEXT + OUTPUT)]
        sampling = SamplingParams(**{"max_new_tokens": 2 * OUTPUT, "seed": i, **several[i % len(several)]})
        rows.append(RequestState(str(i), tokens, CONTEXT, sampling))
    return rows
