"""FlatBatch: an iteration as flat arrays (paper, section 3.2: selective batching).

Every operation except attention runs over one axis of all tokens of all requests. Attention finds the requests by the
lengths and block tables here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from services.engine.batch.buffers import send
from services.engine.batch.request_state import RequestState
from services.models.pooling import Method

Numbers = np.ndarray[Any, np.dtype[np.int32]]

NO_ID = -1
NO_DRAFTS: Mapping[str, list[int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Drawn:
    """Sampled tokens that only the device knows yet: at `places` of a batch are those of `rows` of a draw."""

    places: Numbers  # [tokens]
    rows: Numbers  # [tokens]
    draw: torch.Tensor  # [rows of the draw], int64

    def put(self, ids: torch.Tensor) -> None:
        """Put them into the ids [total_tokens] of the batch on their device. The host does not wait."""
        count = len(self.rows)
        every = np.arange(count)
        if len(self.draw) == count and (self.rows == every).all() and (self.places == every).all():
            ids[:count].copy_(self.draw)  # increments of the same requests, as most iterations are
        else:
            places, rows = send([self.places.astype(np.int64), self.rows.astype(np.int64)], ids.device)
            ids.index_copy_(0, places, self.draw.index_select(0, rows).to(ids.dtype))


class AdaptedTokens(NamedTuple):
    """Neighbouring tokens of a batch whose requests have the same adapter."""

    adapter: str  # its digest
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """Request i has the flat tokens `starts[i]` to `starts[i + 1]`, which follow `contexts[i]` computed ones. A draft
    is the last of them."""

    input_ids: Numbers  # [total_tokens]; NO_ID in the places of `drawn`
    drawn: Drawn | None
    starts: Numbers  # [requests + 1]
    contexts: Numbers  # [requests], tokens computed before this iteration
    table_starts: Numbers  # [requests + 1], into `tables`
    tables: Numbers  # the blocks of each request's context and new tokens, one request after another
    # [rows], flat index of each token after which logits are needed: the last of each request that is complete after
    # this iteration, and all of its draft. For vectors it is the token that `method` says, or all of them.
    ends: Numbers
    sampled: list[RequestState]  # the requests that are complete after this iteration
    drafts: list[list[int]]  # of each of them; empty for most
    block_size: int
    scored_tokens: Numbers  # [scored], flat index of each token after which a prompt's next token is scored
    targets: Numbers  # [scored], these next tokens
    scored_requests: list[tuple[RequestState, int]]  # and how many of `scored_tokens` each has, in order
    wanted: Numbers  # [rows + scored], `ends` and then `scored_tokens`: the tokens whose logits are needed
    adapted: tuple[AdaptedTokens, ...] = ()  # in their order

    @property
    def num_requests(self) -> int:
        return len(self.contexts)

    def length(self, i: int) -> int:
        """How many tokens of request i this iteration computes."""
        return int(self.starts[i + 1] - self.starts[i])

    def table(self, i: int) -> list[int]:
        """Request i's blocks."""
        blocks: list[int] = self.tables[self.table_starts[i] : self.table_starts[i + 1]].tolist()
        return blocks

    def positions(self) -> Numbers:
        """[total_tokens], the position of each token in its request."""
        shifts = np.repeat(self.contexts - self.starts[:-1], np.diff(self.starts))
        positions: Numbers = np.arange(len(self.input_ids), dtype=np.int32) + shifts
        return positions

    def slots(self) -> Numbers:
        """[total_tokens], where each token's key and value are written: block * block_size + offset."""
        positions = self.positions()
        tables = np.repeat(self.table_starts[:-1], np.diff(self.starts))
        slots: Numbers = (
            self.tables[tables + positions // self.block_size] * self.block_size + positions % self.block_size
        )
        return slots


class Packer:
    """Packs iterations one after another. Increments of the same requests as in the last one are that batch, a token
    further."""

    def __init__(self, block_size: int, method: Method = "last") -> None:
        self._block_size, self._method = block_size, method
        self._last: FlatBatch | None = None  # if it was increments only

    def __call__(
        self,
        scheduled: list[tuple[RequestState, int]],
        drafts: Mapping[str, list[int]] = NO_DRAFTS,
        draw: torch.Tensor | None = None,
    ) -> FlatBatch:
        """See `pack_batch`."""
        if self._last and not drafts and _follows(scheduled, self._last):
            batch = _advanced(self._last, draw)
        else:
            batch = pack_batch(scheduled, self._block_size, drafts, self._method, draw)
        increments = batch.num_requests == len(batch.input_ids) == len(batch.sampled)
        self._last = batch if increments and not batch.scored_requests else None
        return batch


def _follows(scheduled: list[tuple[RequestState, int]], last: FlatBatch) -> bool:
    """Whether these are increments of the same requests in the same order."""
    return len(scheduled) == last.num_requests and all(
        count == 1 and state is one for (state, count), one in zip(scheduled, last.sampled, strict=True)
    )


def _advanced(last: FlatBatch, draw: torch.Tensor | None) -> FlatBatch:
    """The next increments of the requests of `last`."""
    states, size = last.sampled, last.block_size
    contexts = _numbers([state.num_computed_tokens for state in states])
    ids = _numbers([NO_ID if state.unknown else state.token_ids[-1] for state in states])
    places = np.flatnonzero(ids == NO_ID).astype(np.int32)
    tables, table_starts = last.tables, last.table_starts
    begun = np.flatnonzero(contexts % size == 0)  # requests that come to another block
    if len(begun):
        blocks = [states[i].blocks[contexts[i] // size] for i in begun.tolist()]
        tables = np.insert(tables, table_starts[begun + 1], blocks)
        table_starts = table_starts + np.searchsorted(begun, np.arange(len(table_starts))).astype(np.int32)
    return replace(
        last,
        input_ids=ids,
        drawn=_drawn(places, [states[i].row for i in places.tolist()], draw),
        contexts=contexts,
        tables=tables,
        table_starts=table_starts,
    )


def _drawn(places: Numbers, rows: list[int], draw: torch.Tensor | None) -> Drawn | None:
    if not rows:
        return None
    assert draw is not None, "no draw is left for the tokens that are not known"
    return Drawn(places, _numbers(rows), draw)


def pack_batch(
    scheduled: list[tuple[RequestState, int]],
    block_size: int,
    drafts: Mapping[str, list[int]] = NO_DRAFTS,
    method: Method = "last",
    draw: torch.Tensor | None = None,
) -> FlatBatch:
    """The flat batch of these requests, each with its number of next tokens. `drafts`, by id, follow the last token of
    a request. `method`: see Pooling. `draw` are the tokens of the last draw, if requests have one that is unknown.

    Two counters of a request decide everything: there are no phases.
    """
    input_ids: list[int] = []
    tables: list[Numbers] = []
    starts, ends = [0], list[int]()
    sampled, sampled_drafts = [], []
    places, rows = list[int](), list[int]()
    for state, count in scheduled:
        begin, end = state.num_computed_tokens, state.num_computed_tokens + count
        assert begin < end <= state.num_tokens, f"{state.id}: {count} tokens from {begin} of {state.num_tokens}"
        input_ids += state.token_ids[begin:end]
        if end > len(state.token_ids):
            places.append(len(input_ids))
            rows.append(state.row)
            input_ids.append(NO_ID)
        if end == state.num_tokens:
            draft = drafts.get(state.id, [])
            input_ids += draft
            end += len(draft)
            last = len(input_ids)
            if method == "mean":
                ends += range(starts[-1], last)
            elif method == "cls":
                ends.append(starts[-1])
            else:
                ends += range(last - len(draft) - 1, last)
            sampled.append(state)
            sampled_drafts.append(draft)
        assert end <= len(state.blocks) * block_size, f"{state.id}: {end} tokens in {len(state.blocks)} blocks"
        tables.append(np.frombuffer(state.blocks, np.int32, -(-end // block_size)))
        starts.append(len(input_ids))
    scored_requests, scored_tokens, targets = _scored(scheduled, starts)
    wanted = _numbers(ends + scored_tokens)
    return FlatBatch(
        input_ids=_numbers(input_ids),
        drawn=_drawn(_numbers(places), rows, draw),
        starts=_numbers(starts),
        contexts=_numbers([state.num_computed_tokens for state, _ in scheduled]),
        table_starts=_numbers([0, *accumulate(map(len, tables))]),
        tables=np.concatenate(tables),
        ends=wanted[: len(ends)],
        sampled=sampled,
        drafts=sampled_drafts,
        block_size=block_size,
        scored_tokens=wanted[len(ends) :],
        targets=_numbers(targets),
        scored_requests=scored_requests,
        wanted=wanted,
        adapted=_adapted(scheduled, starts),
    )


def _adapted(scheduled: list[tuple[RequestState, int]], starts: list[int]) -> tuple[AdaptedTokens, ...]:
    """`adapted` of FlatBatch."""
    found: list[AdaptedTokens] = []
    for (state, _), start, end in zip(scheduled, starts, starts[1:], strict=False):
        if adapter := state.sampling.adapter:
            if found and found[-1].end == start and found[-1].adapter == adapter:
                start = found.pop().first
            found.append(AdaptedTokens(adapter, start, end))
    return tuple(found)


def _scored(
    scheduled: list[tuple[RequestState, int]], starts: list[int]
) -> tuple[list[tuple[RequestState, int]], list[int], list[int]]:
    """`scored_requests`, `scored_tokens` and `targets` of FlatBatch. The token after a prompt's last one is sampled,
    not scored."""
    requests: list[tuple[RequestState, int]] = []
    tokens: list[int] = []
    targets: list[int] = []
    for (state, count), start in zip(scheduled, starts, strict=False):
        if state.prompt_scores is not None:
            begin = state.num_computed_tokens
            follow = state.token_ids[begin + 1 : min(begin + count + 1, state.num_prompt_tokens)]
            requests.append((state, len(follow)))
            tokens += range(start, start + len(follow))
            targets += follow
    return requests, tokens, targets


def _numbers(values: list[int]) -> Numbers:
    return np.array(values, dtype=np.int32)
