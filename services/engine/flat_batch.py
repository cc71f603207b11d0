"""FlatBatch: an iteration as flat tensors (paper, section 3.2: selective batching).

Every operation but attention runs over one axis of all tokens of all requests; attention finds its requests by
the lengths and block tables here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch

from services.engine.rows import Row


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """Request i has the flat tokens `starts[i]` to `starts[i + 1]`, behind `contexts[i]` computed ones."""

    input_ids: torch.Tensor  # [1, total_tokens]
    positions: torch.Tensor  # [1, total_tokens], of each token in its request
    slots: torch.Tensor  # [total_tokens], where its key and value go: block * block_size + offset
    starts: list[int]  # [requests + 1]
    contexts: list[int]  # [requests], tokens computed before this iteration
    block_tables: list[list[int]]  # [requests][blocks], those that hold context and new tokens
    ends: torch.Tensor  # [sampling], flat index of the last token of each request that is complete after this
    sampling: list[Row]  # [sampling], those requests

    @property
    def num_requests(self) -> int:
        return len(self.contexts)

    def length(self, i: int) -> int:
        """Tokens of request i to compute in this iteration."""
        return self.starts[i + 1] - self.starts[i]


def pack(scheduled: list[tuple[Row, int]], block_size: int, device: torch.device) -> FlatBatch:
    """The flat batch of these rows, each with so many next tokens. Two counters tell all: there are no phases."""
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    tables: list[list[int]] = []
    for row, count in scheduled:
        begin, end = row.num_computed_tokens, row.num_computed_tokens + count
        assert begin < end <= len(row.token_ids), f"{row.id}: {count} tokens from {begin} of {len(row.token_ids)}"
        assert end <= len(row.blocks) * block_size, f"{row.id}: {end} tokens in {len(row.blocks)} blocks"
        input_ids += row.token_ids[begin:end]
        positions += range(begin, end)
        slots += [row.blocks[p // block_size] * block_size + p % block_size for p in range(begin, end)]
        tables.append(row.blocks[: -(-end // block_size)])
    starts = [0, *accumulate(count for _, count in scheduled)]
    complete = [i for i, (row, count) in enumerate(scheduled) if row.num_computed_tokens + count == len(row.token_ids)]
    return FlatBatch(
        input_ids=torch.tensor([input_ids], device=device),
        positions=torch.tensor([positions], device=device),
        slots=torch.tensor(slots, device=device),
        starts=starts,
        contexts=[row.num_computed_tokens for row, _ in scheduled],
        block_tables=tables,
        ends=torch.tensor([starts[i + 1] - 1 for i in complete], dtype=torch.long, device=device),
        sampling=[scheduled[i][0] for i in complete],
    )
