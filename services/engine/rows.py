"""Rows: what the engine remembers of each request between iterations."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.messages import Iteration, NewRequest
from services.requests import SamplingParams


@dataclass(slots=True)
class Row:
    """One request: its tokens, how many of them are computed, and the blocks that hold their keys and values."""

    id: str
    token_ids: list[int]  # prompt + output
    num_prompt_tokens: int
    sampling: SamplingParams
    num_computed_tokens: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens


class Rows:
    """The rows of all requests the scheduler has sent and not released, by id; no two share a block."""

    def __init__(self, vocab_size: int, max_model_len: int) -> None:
        self._rows: dict[str, Row] = {}
        self._blocks: set[int] = set()  # of all rows
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len

    def __getitem__(self, id: str) -> Row:
        return self._rows[id]

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        self._rows.clear()
        self._blocks.clear()

    def forget(self, id: str) -> Row | None:
        row = self._rows.pop(id, None)
        if row:
            self._blocks.difference_update(row.blocks)
        assert self._rows or not self._blocks, f"blocks {self._blocks} are nobody's"
        return row

    def apply(self, iteration: Iteration) -> dict[str, str]:
        """Forget the released, add the new, append the new blocks. Returns why new requests cannot run, by id."""
        for id in iteration.released:
            self.forget(id)
        failed: dict[str, str] = {}
        for new in iteration.new:
            assert new.id not in self._rows, f"{new.id} is new but was not released"
            if reason := self._objection(new):
                failed[new.id] = reason
            else:
                self._rows[new.id] = Row(new.id, list(new.token_ids), new.num_prompt_tokens, new.sampling)
        for id, blocks in iteration.new_blocks.items():
            if id not in failed:
                assert self._blocks.isdisjoint(blocks), f"{id} was given another's block"
                self._blocks.update(blocks)
                self._rows[id].blocks.extend(blocks)
        return failed

    def _objection(self, new: NewRequest) -> str | None:
        """An id outside the vocabulary would be an index error for the whole batch (on CUDA: of the process)."""
        assert 0 < new.num_prompt_tokens <= len(new.token_ids), f"{new.id}: {new.num_prompt_tokens} prompt tokens"
        if len(new.token_ids) > self._max_model_len:
            return f"{len(new.token_ids)} tokens, the model's length is {self._max_model_len}"
        for id in (min(new.token_ids), max(new.token_ids), *new.sampling.logit_bias):
            if not 0 <= id < self._vocab_size:
                return f"token id {id} is outside the vocabulary of {self._vocab_size}"
        return None
