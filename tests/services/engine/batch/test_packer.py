"""A batch that is made from the last one is the one that is made anew."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.engine.batch.flat_batch import Drawn, FlatBatch, Packer, pack_batch
from services.engine.batch.request_state import RequestState
from services.requests import SamplingParams

SIZE = 4


def same(one: FlatBatch, other: FlatBatch) -> bool:
    return all(equal(getattr(one, of.name), getattr(other, of.name)) for of in fields(FlatBatch))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Drawn):
        return all(equal(getattr(one, of.name), getattr(other, of.name)) for of in fields(Drawn))
    return bool(one is other or one == other)


def requests(draw: random.Random) -> list[RequestState]:
    made = []
    for i in range(draw.randint(1, 6)):
        length = draw.randint(1, 9)
        state = RequestState(str(i), [draw.randrange(50) for _ in range(length)], length, SamplingParams(99))
        state.blocks.extend(draw.sample(range(1000), 20))
        made.append(state)
    return made


@given(st.integers(0, 2**32))
def test_batches_made_from_the_last_are_those_made_anew(seed: int) -> None:
    """Of requests in any order, that join and leave, whose last tokens are known or not, in chunks, with drafts."""
    draw = random.Random(seed)
    states, packer, tokens = requests(draw), Packer(SIZE), torch.arange(8)
    chosen = states
    for _ in range(25):
        if draw.random() < 0.2:
            chosen = draw.sample(states, draw.randint(1, len(states)))
        scheduled = []
        for state in chosen:
            left = state.num_tokens - state.num_computed_tokens
            scheduled.append((state, left if draw.random() < 0.9 else draw.randint(1, left)))
        drafts = {chosen[0].id: [3, 4]} if draw.random() < 0.1 and scheduled[0][1] == 1 else {}
        batch = packer(scheduled, drafts, tokens)
        assert same(batch, pack_batch(scheduled, SIZE, drafts, draw=tokens))
        for state, count in scheduled:
            state.num_computed_tokens += count
        for state in states:  # results of earlier draws
            if state.unknown and (state in batch.sampled or draw.random() < 0.5):
                state.unknown = 0
                state.append(9)
        for row, state in enumerate(batch.sampled):
            if draw.random() < 0.5:
                state.unknown, state.row = 1, row
            else:
                state.append(draw.randrange(50), [7] * draw.randint(0, len(drafts.get(state.id, []))))
        if draw.random() < 0.1:  # preempted, and sent again with the tokens that are known
            place = draw.randrange(len(states))
            again = replace(states[place], num_computed_tokens=0, unknown=0, token_ids=list(states[place].token_ids))
            chosen = [again if one is states[place] else one for one in chosen]
            states[place] = again
