"""States in blocks: any batches and chunks, over shared blocks too, compute what a whole request computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.engine.backends.stock.state_blocks import Scratch, StateBlocks
from services.engine.backends.stock.states import StateKey, StateLayer, advancing
from services.engine.batch.flat_batch import FlatBatch, pack_batch
from services.engine.batch.kv_cache import KVCache, LayerShape, StateShape
from services.engine.batch.request_state import RequestState
from services.requests import SamplingParams

CPU = torch.device("cpu")
SHAPES = {StateKey(True, 0): StateShape((1,), torch.float64), StateKey(False, 0): StateShape((1, 2), torch.float64)}
BLOCKS = 80


class Sums(torch.nn.Module):
    """A layer with both kinds of states: the sum of all tokens so far, and the last two tokens. As in transformers,
    one token changes a convolution's state in place."""

    def forward(self, hidden_states: torch.Tensor, cache_params: Any = None) -> torch.Tensor:
        before = cache_params.get_recurrent_state(0, state_idx=0)
        sums = before[:, None] + hidden_states.cumsum(1)
        cache_params.update_recurrent_state(sums[:, -1], 0)
        if hidden_states.shape[1] == 1:
            last = cache_params.get_conv_state(0, state_idx=0)
            last[:] = torch.cat([last[..., 1:], hidden_states.transpose(1, 2)], -1)
            previous = last[..., :1]
        else:
            previous = cache_params.update_conv_state(hidden_states.transpose(1, 2), 0)
            previous = previous[..., -hidden_states.shape[1] - 1 : -1]
        return sums * 1000 + previous.transpose(1, 2)


def expected(tokens: list[int]) -> list[float]:
    sums = np.cumsum(tokens)
    return [float(sums[i] * 1000 + (tokens[i - 1] if i else 0)) for i in range(len(tokens))]


@dataclass
class Scheduler:
    """Places blocks and runs batches over one layer with states."""

    block_size: int
    one_by_one: bool = False
    free: list[int] = field(default_factory=lambda: list(range(BLOCKS)))

    def __post_init__(self) -> None:
        self.module = Sums()
        self.layer = StateLayer(self.module, 0, SHAPES)
        self.layer.one_by_one = self.one_by_one
        self.scratch = Scratch()
        self.cache = KVCache([LayerShape(1, 1, 1)], BLOCKS, self.block_size, torch.float32, CPU, states=SHAPES.values())

    def request(self, tokens: list[int], shared: list[int] | None = None) -> RequestState:
        """A request that begins with blocks of another one."""
        state = RequestState("", tokens, len(tokens), SamplingParams(max_new_tokens=1))
        state.blocks.extend(shared or [])
        state.num_computed_tokens = len(state.blocks) * self.block_size
        while len(state.blocks) * self.block_size < len(tokens):
            state.blocks.append(self.free.pop())
        return state

    def run(self, scheduled: list[tuple[RequestState, int]]) -> None:
        """Compare the outputs with those of whole requests."""
        batch: FlatBatch = pack_batch(scheduled, self.block_size)
        hidden = torch.from_numpy(batch.input_ids).double()[None, :, None]
        with advancing(StateBlocks(batch, self.cache, [self.layer], CPU, self.scratch)):
            outputs = self.module(hidden, cache_params=None)
        wanted: list[float] = []
        for state, count in scheduled:
            begin = state.num_computed_tokens
            wanted += expected(state.token_ids)[begin : begin + count]
            state.num_computed_tokens += count
        assert outputs.flatten().tolist() == wanted


PROMPTS = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=20), min_size=1, max_size=4)


@given(PROMPTS, st.integers(1, 5), st.booleans(), st.data())
def test_any_batches_and_chunks(prompts: list[list[int]], size: int, one_by_one: bool, data: st.DataObject) -> None:
    scheduler = Scheduler(size, one_by_one)
    requests = [scheduler.request(prompt) for prompt in prompts]
    while left := [one for one in requests if one.num_computed_tokens < len(one.token_ids)]:
        chosen = data.draw(st.lists(st.sampled_from(left), min_size=1, unique_by=id))
        counts = [data.draw(st.integers(1, len(one.token_ids) - one.num_computed_tokens)) for one in chosen]
        scheduler.run(list(zip(chosen, counts, strict=True)))


@given(st.integers(1, 3), st.integers(0, 5), st.integers(1, 6), st.booleans(), st.permutations([0, 1, 2]))
def test_a_shared_block_may_be_filled_in_the_same_iteration(
    shared: int, rest: int, own: int, one_by_one: bool, order: list[int]
) -> None:
    """By a prompt or by a single token, wherever in the batch the requests that begin with it are."""
    scheduler = Scheduler(3, one_by_one)
    prefix = [7 + i for i in range(3 * shared)]
    first = scheduler.request([*prefix, *[50] * rest])
    before = min(rest, 3 * shared - 1)
    if before:
        scheduler.run([(first, before)])
    others = [scheduler.request([*prefix, *[60 + i] * own], list(first.blocks[:shared])) for i in range(2)]
    batch = [(first, len(first.token_ids) - before), *((other, own) for other in others)]
    scheduler.run([batch[i] for i in order])


def test_a_block_whose_state_is_of_another_token_is_not_used() -> None:
    scheduler = Scheduler(4)
    request = scheduler.request([1, 2, 3, 4, 5])
    scheduler.run([(request, 3)])
    request.num_computed_tokens = 2
    with pytest.raises(AssertionError, match="has its state after 3 tokens, not 2"):
        scheduler.run([(request, 1)])
