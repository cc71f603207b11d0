"""What sampling costs, and what the log probabilities of a prompt cost, compared with an iteration of the model."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from load.bench.engine.batches import EPOCH, Batches
from load.bench.engine.timing import FULL, Scale, Seconds, seconds_of
from load.report import table
from services.engine.batch.request_state import RequestState
from services.engine.engine import Engine
from services.messages import Iteration, NewRequest
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
LIMITED: dict[str, dict[str, Any]] = {  # not part of the mix
    "greedy, 1,000 allowed": {"temperature": 0.0, "allowed_token_ids": tuple(range(1000))},
    "top_p 0.95, 1,000 allowed": {"top_p": 0.95, "allowed_token_ids": tuple(range(1000))},
    "top_p 0.95, 16,384 allowed": {"top_p": 0.95, "allowed_token_ids": tuple(range(16_384))},
    "greedy, 128 bad words": {"temperature": 0.0, "bad_words": tuple((i, i + 1) for i in range(64)) + ((7,),) * 64},
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
        alone = {kind: [one] for kind, one in (KINDS | LIMITED).items()}
        for kind, several in {**alone, "a mix": list(KINDS.values())}.items():
            rows = _rows(batch, vocab, several)
            with torch.inference_mode():
                seconds = seconds_of([partial(engine.sampler.sample, logits, rows)], device, scale).best
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
    return statistics.median(one.seconds for one in batches.increments(batch, context, STEPS)[1:])


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
        sampling = replace(sampling, allowed_token_ids=sampling.allowed_token_ids[:vocab])
        rows.append(RequestState(str(i), tokens, CONTEXT, sampling))
    return rows


LENGTH = 512  # tokens of a prompt that is scored
ASKED = (None, 0, 1, 20)  # prompt_logprobs


@dataclass(frozen=True, slots=True)
class Scoring:
    """The time of an iteration of one prompt of `tokens` tokens with `asked` as its prompt_logprobs."""

    asked: int | None
    tokens: int
    seconds: Seconds


def measure_scoring(engine: Engine, scale: Scale = FULL) -> Iterator[Scoring]:
    """All kinds in turn, so that what slows the machine slows all of them."""
    figures, draw = engine.figures, random.Random(0)
    length = min(LENGTH, figures.max_model_len - 1)
    seconds: dict[int | None, list[float]] = {asked: [] for asked in ASKED}
    for _ in range(1 + scale.scoring_rounds):
        for asked, taken in seconds.items():
            prompt = [draw.randrange(figures.vocab_size) for _ in range(length)]
            taken.append(_seconds(engine, prompt, asked))
    for asked, (_, *counted) in seconds.items():
        yield Scoring(asked, length, Seconds(min(counted), statistics.median(counted)))


def scoring_table(measured: list[Scoring]) -> str:
    """Milliseconds, and each kind compared with a prompt that is not scored."""
    plain = measured[0].seconds
    rows = []
    for one in measured:
        best, median = one.seconds
        name = "none" if one.asked is None else one.asked
        rows.append([name, one.tokens, f"{best * 1e3:,.1f}", f"{median * 1e3:,.1f}", f"{best / plain.best:.2f}"])
    return table(["prompt_logprobs", "tokens", "best, ms", "median, ms", "ratio to none"], rows)


def _seconds(engine: Engine, prompt: list[int], asked: int | None) -> float:
    """Seconds of one iteration that computes the prompt and samples a token."""
    sampling = SamplingParams(1, temperature=0.0, logprobs=None if asked is None else 0, prompt_logprobs=asked)
    blocks = list(range(-(-len(prompt) // engine.figures.block_size)))
    engine.reset(EPOCH)
    new = NewRequest("one", prompt, len(prompt), sampling)
    result = engine.run(Iteration(EPOCH, 0, {"one": len(prompt)}, [new], {"one": blocks}))
    assert not result.failed, result.failed
    return result.elapsed
