"""What sampling costs: a call of the sampler for each kind of settings, beside an increment iteration of the model."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from load.bench.engine.batches import Batches
from load.bench.engine.timing import seconds_of
from load.markdown import table
from services.engine.engine import Engine
from services.engine.rows import Row
from services.requests import SamplingParams

BATCHES = (32, 256)
CONTEXT = 128  # tokens of each request of the iteration, and of the prompts that penalties look at
OUTPUT = 384  # tokens that penalties look at
STEPS = 4  # increment iterations, the first of which is not counted
LOGITS = (3.2, 8.0)  # standard deviation of the logits, and what the likeliest is above the next: like the model's own

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top_k 50": {"top_k": 50},
    "top_p 0.95": {"top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "temperature 1": {},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "logprobs 5": {"temperature": 0.0, "logprobs": 5},
}
LIMITED: dict[str, dict[str, Any]] = {  # not part of the mix
    "greedy, 1,000 allowed": {"temperature": 0.0, "allowed_token_ids": tuple(range(1000))},
    "top_p 0.95, 1,000 allowed": {"top_p": 0.95, "allowed_token_ids": tuple(range(1000))},
    "top_p 0.95, 16,384 allowed": {"top_p": 0.95, "allowed_token_ids": tuple(range(16_384))},
    "greedy, 128 bad words": {"temperature": 0.0, "bad_words": tuple((i, i + 1) for i in range(64)) + ((7,),) * 64},
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """Seconds of a call of the sampler for `batch` requests, and of an increment iteration of as many; None where as
    many do not fit."""

    kind: str
    batch: int
    vocab: int
    seconds: float
    iteration: float | None


def measure_sampling(engine: Engine, device: torch.device) -> Iterator[Sampling]:
    """All kinds, each the settings of all requests, then a mix of them. The iterations are greedy."""
    vocab = engine.figures.vocab_size
    for batch in BATCHES:
        iteration = _iteration(engine, batch)
        logits = _logits(batch, vocab).to(device)  # float32, as the lean path has them
        alone = {kind: [one] for kind, one in (KINDS | LIMITED).items()}
        for kind, several in {**alone, "a mix": list(KINDS.values())}.items():
            rows = _rows(batch, vocab, several)
            with torch.inference_mode():
                seconds = seconds_of([partial(engine.sampler.sample, logits, rows)], device).best
            yield Sampling(kind, batch, vocab, seconds, iteration)


def sampling_table(measured: list[Sampling]) -> str:
    """Milliseconds, and the share of the iteration."""
    rows = []
    for one in measured:
        beside = ["does not fit", ""]
        if one.iteration is not None:
            beside = [f"{one.iteration * 1e3:,.1f}", f"{one.seconds / one.iteration:.1%}"]
        rows.append([one.kind, one.batch, f"{one.seconds * 1e3:,.2f}", *beside])
    return table(["settings", "requests", "sampler, ms", "iteration, ms", "share"], rows)


def _iteration(engine: Engine, batch: int) -> float | None:
    """Seconds of an increment iteration, a median."""
    batches, block = Batches(engine), engine.figures.block_size
    context = CONTEXT // block * block
    if not batches.fits(batch, context + STEPS):
        return None
    return statistics.median(one.seconds for one in batches.increments(batch, context, STEPS)[1:])


def _logits(batch: int, vocab: int) -> torch.Tensor:
    """Normal, but for the likeliest of some requests."""
    generator = torch.Generator().manual_seed(0)
    deviation, lead = LOGITS
    logits = torch.randn(batch, vocab, generator=generator) * deviation
    logits[:, 0] = logits.amax(dim=-1) + torch.rand(batch, generator=generator) * lead
    return logits


def _rows(batch: int, vocab: int, several: list[dict[str, Any]]) -> list[Row]:
    """Requests that have these settings in turn, far into their output."""
    draw = random.Random(0)
    rows = []
    for i in range(batch):
        tokens = [draw.randrange(vocab) for _ in range(CONTEXT + OUTPUT)]
        sampling = SamplingParams(**{"max_new_tokens": 2 * OUTPUT, "seed": i, **several[i % len(several)]})
        sampling = replace(sampling, allowed_token_ids=sampling.allowed_token_ids[:vocab])
        rows.append(Row(str(i), tokens, CONTEXT, sampling))
    return rows
