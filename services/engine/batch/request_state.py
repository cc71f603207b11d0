"""Rows: what the engine remembers of each request between iterations."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

from services.engine.sampling.adjustments import Adjustments
from services.engine.sampling.allowed import Allowed
from services.messages import Iteration, NewRequest, PromptLogprobs
from services.requests import SamplingParams


@dataclass(slots=True)
class Scores:
    """The log probabilities of one prompt, as far as it is computed; `failed`: why there are none."""

    told: PromptLogprobs = field(default_factory=lambda: PromptLogprobs([], [], [], []))
    failed: str | None = None


@dataclass(slots=True)
class Row:
    """One request: its tokens, how many of them are computed, and the blocks that hold their keys and values."""

    id: str
    token_ids: list[int]  # prompt + output
    num_prompt_tokens: int
    sampling: SamplingParams
    num_computed_tokens: int = 0
    blocks: array[int] = field(default_factory=lambda: array("i"))
    adjustments: Adjustments | None = None  # of its logits; the sampler's
    allowed: Allowed | None = None  # the only tokens that may be sampled; None: all. The sampler's, too
    scores: Scores | None = None  # until the first output token, where its prompt's log probabilities are wanted
    dead: bool = False  # it failed; iterations that were sent before that was known may still name it

    @classmethod
    def of(cls, new: NewRequest) -> Row:
        """A request as the scheduler sends it. Scores that came with an output token are there already."""
        asked = new.sampling.prompt_logprobs is not None and len(new.token_ids) == new.num_prompt_tokens
        assert not (asked and new.num_computed_tokens), f"{new.id}: logits of computed tokens are wanted"
        scores = Scores() if asked else None
        return cls(
            new.id, list(new.token_ids), new.num_prompt_tokens, new.sampling, new.num_computed_tokens, scores=scores
        )

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens


class Rows:
    """The rows of all requests the scheduler has sent and not released, by id. They share no block, but those that
    were computed before a request came."""

    def __init__(self, block_size: int) -> None:
        self._rows: dict[str, Row] = {}
        self._holders: Counter[int] = Counter()  # rows that have a block
        self._soiled: set[int] = set()  # failed requests had them
        self._block_size = block_size

    def __getitem__(self, id: str) -> Row:
        return self._rows[id]

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        """Forget all; what failed ones left in their blocks stays there."""
        for id in list(self._rows):
            self._release(id)

    def _release(self, id: str) -> None:
        """Forget a request, if it is known."""
        if row := self._rows.pop(id, None):
            self._holders.subtract(row.blocks)
            for block in row.blocks:
                if not self._holders[block]:
                    del self._holders[block]
            if row.dead:
                self._soiled.update(row.blocks)
        assert self._rows or not self._holders, f"blocks {set(self._holders)} are nobody's"

    def apply(self, iteration: Iteration) -> list[int]:
        """Forget the released, add the new, append the new blocks. Returns the blocks to erase: those of failed
        requests that are written anew. One who shares them with what they hold fails by itself, if they are why the
        other did; else they are as they should be."""
        for id in iteration.released:
            self._release(id)
        erase: set[int] = set()
        for new in iteration.new:
            assert new.id not in self._rows, f"{new.id} is new but was not released"
            assert 0 < new.num_prompt_tokens <= len(new.token_ids), f"{new.id}: {new.num_prompt_tokens} prompt tokens"
            self._rows[new.id] = Row.of(new)
        for id, blocks in iteration.new_blocks.items():
            row = self._rows[id]
            shared = 0 if row.blocks else row.num_computed_tokens // self._block_size
            own = blocks[shared:]
            assert not any(self._holders[block] for block in own), f"{id} was given another's block"
            erase.update(self._soiled.intersection(own))
            self._holders.update(blocks)
            row.blocks.extend(blocks)
        self._soiled -= erase
        return sorted(erase)

    def scheduled(self, iteration: Iteration) -> list[tuple[Row, int]]:
        """Who is computed, with how many tokens."""
        rows = ((self._rows[id], count) for id, count in iteration.scheduled.items())
        return [(row, count) for row, count in rows if not row.dead]
