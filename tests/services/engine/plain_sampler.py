"""The plain definition of the sampler: one request, the whole vocabulary, one step after another."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import torch

from services.engine.batch.request_state import RequestState
from services.engine.sampling.noise import gumbel, keys
from services.engine.sampling.truncation import weights


def plain_token(logits: torch.Tensor, row: RequestState, eos: frozenset[int]) -> int | None:
    """The token for `logits` [vocab], all finite or -inf; None where nothing is left."""
    s, scores = row.sampling, logits.float().clone()
    change(scores, row, eos)
    if scores.max() == -torch.inf:
        return None
    if s.temperature == 0.0:
        return int(scores.argmax())
    scores = (scores - scores.max()) / torch.tensor(s.temperature, dtype=torch.float32)
    drop(scores, s.min_p, s.top_k, s.top_p)
    key = torch.from_numpy(keys([s.seed], [s.choice], [len(row.token_ids)]))
    return int((scores + gumbel(key, torch.arange(len(scores)))).argmax())


def change(scores: torch.Tensor, row: RequestState, eos: frozenset[int]) -> None:
    """Bias, ends held back, bad words, allowed tokens, a grammar's mask, penalties, an id at a time."""
    s, output_ids = row.sampling, row.token_ids[row.num_prompt_tokens :]
    for id, bias in s.logit_bias.items():
        scores[id] += bias
    if row.num_output_tokens < s.min_tokens:
        for id in {*s.stop_token_ids, *(() if s.ignore_eos else eos)}:
            if id < len(scores):
                scores[id] = -torch.inf
    for *beginning, last in s.bad_words:
        if output_ids[max(0, row.num_output_tokens - len(beginning)) :] == beginning:
            scores[last] = -torch.inf
    for id in range(len(scores)) if s.allowed_token_ids else ():
        if id not in s.allowed_token_ids:
            scores[id] = -torch.inf
    for id in range(len(scores)) if row.mask is not None else ():
        if not row.mask[id // 32] >> id % 32 & 1:
            scores[id] = -torch.inf
    for id in set(row.token_ids):
        scores[id] = scores[id] / s.repetition_penalty if scores[id] > 0 else scores[id] * s.repetition_penalty
    for id, count in Counter(output_ids).items():
        presence, frequency = np.float32(s.presence_penalty), np.float32(s.frequency_penalty)
        scores[id] -= float(presence + frequency * np.float32(count))
    scores.clamp_(max=torch.finfo(torch.float32).max)


def drop(scores: torch.Tensor, min_p: float, top_k: int, top_p: float) -> None:
    """min_p, then top_k, then top_p; equal scores stay together."""
    if min_p:
        scores[scores < np.float32(math.log(min_p))] = -torch.inf
    if 0 < top_k < len(scores):
        scores[scores < scores.sort(descending=True).values[top_k - 1]] = -torch.inf
    if top_p < 1.0:
        weight = weights(scores).tolist()
        goal, held = int(top_p * float(sum(weight))), 0
        for id in sorted(range(len(weight)), key=lambda id: -scores[id].item()):
            held += weight[id]
            if held >= goal:
                scores[scores < scores[id].clone()] = -torch.inf
                return
