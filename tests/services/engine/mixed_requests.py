"""Requests of all kinds of settings."""

from __future__ import annotations

from typing import Any

from letters import letters

from services.engine.batch.request_state import RequestState
from services.engine.sampling.sampler import Sampler
from services.requests import SamplingParams, ThinkingBudget

EOS = frozenset({5})
MIX: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 50, "logprobs": 0},
    {"temperature": 1.3, "top_k": 7, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.95},
    {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.2},
    {"temperature": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": {3: 2.0}, "min_tokens": 9},
    {"temperature": 1.0, "allowed_token_ids": tuple(range(2, 50, 3)), "logprobs": 2},
    {
        "temperature": 0.0,
        "allowed_token_ids": (49, 3, 20),
        "bad_words": ((20,), *((last, 3) for last in range(0, 40, 2))),
    },
    {"temperature": 1.0, "grammar": "start: /[a-z]{2,4}[a-f]*/", "logprobs": 2, "top_p": 0.9},
    {"temperature": 0.0, "grammar": "start: /[a-z]{2,4}[k-p]*/", "logit_bias": {11: 9.0}},
    {"temperature": 1.0, "grammar": "start: /[a-z]{2,4}[a-c]*/", "allowed_token_ids": tuple(range(40)), "top_k": 5},
    {"temperature": 0.0, "thinking_token_budget": ThinkingBudget(2, "<", "zqz", (25, 16, 25), opened=True)},
    {
        "temperature": 1.0,
        "thinking_token_budget": ThinkingBudget(3, "<", "zq", (25, 16, 25), opened=True),
        "min_tokens": 9,
        "stop_token_ids": (16,),
        "bad_words": ((25,),),
        "allowed_token_ids": tuple(range(2, 15)),
        "logprobs": 2,
    },
    {
        "temperature": 1.0,
        "thinking_token_budget": ThinkingBudget(3, "<", "zq", (51, 16, 10), opened=True),
        "grammar": "start: /([a-y]{2})*/ /zzqk[a-f]{1,8}/",
        "presence_penalty": 0.5,
    },
    {
        "temperature": 1.0,
        "thinking_token_budget": ThinkingBudget(1, "a", "zq", (25, 16), again=(16, 25, 16, 0)),
        "logprobs": 0,
    },
]


WITHOUT_GRAMMARS = [kind for kind in MIX if "grammar" not in kind]


def mixed(count: int, vocab: int, kinds: list[dict[str, Any]] = MIX) -> list[RequestState]:
    """Requests of these kinds, in turn, ready to be sampled; of a vocabulary of 50 at least."""
    rows = []
    for i in range(count):
        sampling = SamplingParams(**{"max_new_tokens": 50, "seed": i * 2**55, **kinds[i % len(kinds)]})
        rows.append(RequestState(str(i), [*range(1, 9), i % 40, i % 40], 8, sampling))
        Sampler(EOS, vocab, None, letters(vocab)).prepare(rows[-1])
    return rows
