"""FlatBatch: an iteration as flat arrays (paper, section 3.2: selective batching).

Every operation but attention runs over one axis of all tokens of all requests; attention finds its requests by
the lengths and block tables here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from services.engine.batch.request_state import Row

Numbers = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """Request i has the flat tokens `starts[i]` to `starts[i + 1]`, behind `contexts[i]` computed ones."""

    input_ids: Numbers  # [total_tokens]
    starts: Numbers  # [requests + 1]
    contexts: Numbers  # [requests], tokens computed before this iteration
    table_starts: Numbers  # [requests + 1], into `tables`
    tables: Numbers  # the blocks that hold each request's context and new tokens, one request after the other
    ends: Numbers  # [sampling], flat index of the last token of each request that is complete after this
    sampling: list[Row]  # [sampling], those requests
    block_size: int
    scored: Numbers  # [scored], flat index of each token after which a prompt's next token is scored
    targets: Numbers  # [scored], these next tokens
    scoring: list[tuple[Row, int]]  # requests whose prompts are scored, and how many of `scored` are theirs, in order
    wanted: Numbers  # [sampling + scored], `ends` and then `scored`: the tokens after which there are logits

    @property
    def num_requests(self) -> int:
        return len(self.contexts)

    def length(self, i: int) -> int:
        """Tokens of request i to compute in this iteration."""
        return int(self.starts[i + 1] - self.starts[i])

    def table(self, i: int) -> list[int]:
        """Request i's blocks."""
        blocks: list[int] = self.tables[self.table_starts[i] : self.table_starts[i + 1]].tolist()
        return blocks

    def positions(self) -> Numbers:
        """[total_tokens], of each token in its request."""
        shifts = np.repeat(self.contexts - self.starts[:-1], np.diff(self.starts))
        positions: Numbers = np.arange(len(self.input_ids), dtype=np.int32) + shifts
        return positions

    def slots(self) -> Numbers:
        """[total_tokens], where each token's key and value go: block * block_size + offset."""
        positions = self.positions()
        tables = np.repeat(self.table_starts[:-1], np.diff(self.starts))
        slots: Numbers = (
            self.tables[tables + positions // self.block_size] * self.block_size + positions % self.block_size
        )
        return slots


def pack(scheduled: list[tuple[Row, int]], block_size: int) -> FlatBatch:
    """The flat batch of these rows, each with so many next tokens. Two counters tell all: there are no phases."""
    input_ids: list[int] = []
    tables: list[Numbers] = []
    for row, count in scheduled:
        begin, end = row.num_computed_tokens, row.num_computed_tokens + count
        assert begin < end <= len(row.token_ids), f"{row.id}: {count} tokens from {begin} of {len(row.token_ids)}"
        assert end <= len(row.blocks) * block_size, f"{row.id}: {end} tokens in {len(row.blocks)} blocks"
        input_ids += row.token_ids[begin:end]
        tables.append(np.frombuffer(row.blocks, np.int32, -(-end // block_size)))
    starts = [0, *accumulate(count for _, count in scheduled)]
    complete = [i for i, (row, count) in enumerate(scheduled) if row.num_computed_tokens + count == len(row.token_ids)]
    ends = [starts[i + 1] - 1 for i in complete]
    scoring, scored, targets = _scored(scheduled, starts)
    wanted = _numbers(ends + scored)
    return FlatBatch(
        input_ids=_numbers(input_ids),
        starts=_numbers(starts),
        contexts=_numbers([row.num_computed_tokens for row, _ in scheduled]),
        table_starts=_numbers([0, *accumulate(map(len, tables))]),
        tables=np.concatenate(tables),
        ends=wanted[: len(ends)],
        sampling=[scheduled[i][0] for i in complete],
        block_size=block_size,
        scored=wanted[len(ends) :],
        targets=_numbers(targets),
        scoring=scoring,
        wanted=wanted,
    )


def _scored(scheduled: list[tuple[Row, int]], starts: list[int]) -> tuple[list[tuple[Row, int]], list[int], list[int]]:
    """`FlatBatch.scoring`, `.scored` and `.targets`. What follows a prompt's last token is sampled, not scored."""
    scoring: list[tuple[Row, int]] = []
    scored: list[int] = []
    targets: list[int] = []
    for (row, count), start in zip(scheduled, starts, strict=False):
        if row.scores is not None:
            begin = row.num_computed_tokens
            follow = row.token_ids[begin + 1 : min(begin + count + 1, row.num_prompt_tokens)]
            scoring.append((row, len(follow)))
            scored += range(start, start + len(follow))
            targets += follow
    return scoring, scored, targets


def _numbers(values: list[int]) -> Numbers:
    return np.array(values, dtype=np.int32)
