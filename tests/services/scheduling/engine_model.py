"""A model of an engine without keys and values: each slot holds the tokens that it was computed from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from services.engine.batch.block_names import BlockNames
from services.messages import Iteration, IterationResult
from services.scheduling.block_pool import BlockHashes

EOS = 2
VOCABULARY = 50


def after(tokens: tuple[int, ...]) -> int:
    """Return the next token, which is EOS once in 50 times."""
    return hash(tokens) % VOCABULARY


def expected(prompt: list[int], most: int) -> list[int]:
    """Return the output of an undisturbed run of a request, including EOS."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + most:
        tokens.append(after(tuple(tokens)))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt) :]


@lru_cache(1 << 16)  # engines check all names before each iteration
def name_of(tokens: tuple[int, ...], size: int, salt: str) -> bytes:
    """The name of the last block of these tokens, which fill whole blocks."""
    return BlockHashes(salt, size).first(len(tokens) // size, [*tokens], [])[-1]


@dataclass
class Row:
    tokens: list[int]
    computed: int
    blocks: list[int] = field(default_factory=list)
    dead: bool = False


class EngineModel:
    """Runs iterations. Fails if a request reads a slot that was not computed, or writes a slot that another one
    reads, or if a block has a name that is not that of its content for any of the `salts`.
    """

    def __init__(self, num_blocks: int, block_size: int, salts: Sequence[str] = ()) -> None:
        self.size, self.num_blocks, self.salts = block_size, num_blocks, [*salts]
        self.names = BlockNames(block_size)
        self.rows: dict[str, Row] = {}
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}

    def reset(self) -> None:
        """Forget all requests, as for another owner."""
        self.rows.clear()
        self.check_names()

    def check_names(self) -> None:
        for block, name in self.names.as_dict().items():
            content = [self.slots[block, offset] for offset in range(self.size)]
            tokens = content[-1]
            assert content == [tokens[: len(tokens) - self.size + i + 1] for i in range(self.size)]
            named = any(name == name_of(tokens, self.size, salt) for salt in self.salts)
            assert named, f"block {block} has the name of other tokens"

    def run(self, iteration: Iteration, failed: list[str]) -> IterationResult:
        """Run an iteration. Requests in `failed` that would get a token fail instead."""
        self.names.begin(iteration)
        self.check_names()  # before it runs: earlier iterations have filled the blocks
        for id in iteration.released:
            del self.rows[id]  # raises KeyError if it was never sent
        for new in iteration.new:
            assert new.id not in self.rows
            assert new.num_computed_tokens % self.size == 0
            if new.sampling.prompt_logprobs is not None and len(new.token_ids) == new.num_prompt_tokens:
                assert new.num_computed_tokens == 0, f"{new.id} lacks logits of its prompt"
            self.rows[new.id] = Row(list(new.token_ids), new.num_computed_tokens)
        for id, blocks in iteration.new_blocks.items():
            assert set(blocks) <= set(range(self.num_blocks))
            shared = 0 if self.rows[id].blocks else self.rows[id].computed // self.size
            self._erase(blocks[shared:])
            self.rows[id].blocks += blocks
        rows = {id: self.rows[id] for id in iteration.scheduled if not self.rows[id].dead}
        drafts = {id: draft for id, draft in iteration.drafts.items() if id in rows}
        self._write({id: (row, iteration.scheduled[id], drafts.get(id, [])) for id, row in rows.items()})
        tokens: dict[str, int] = {}
        more: dict[str, list[int]] = {}
        for id, row in rows.items():
            row.computed += iteration.scheduled[id]
            assert row.computed <= len(row.tokens)
            for place in range(row.computed):
                assert self.slots.get(self._slot(row, place)) == tuple(row.tokens[: place + 1]), f"{id} reads {place}"
            if row.computed == len(row.tokens):
                if id in failed:
                    row.dead = True
                    self.names.fail(row.blocks)
                else:
                    tokens[id] = after(tuple(row.tokens))
                    row.tokens.append(tokens[id])
                    for token in drafts.get(id, ()):
                        if token != row.tokens[-1]:
                            break
                        row.computed += 1
                        more.setdefault(id, []).append(after(tuple(row.tokens)))
                        row.tokens.append(more[id][-1])
            else:
                assert id not in drafts, f"{id} has a draft before its prompt is computed"
        reasons = {id: "no" for id, row in rows.items() if row.dead}
        elapsed = self.seconds(iteration)
        return IterationResult(iteration.epoch, iteration.step, tokens, {}, reasons, elapsed, more)

    @staticmethod
    def seconds(iteration: Iteration) -> float:
        return 0.01 + 0.001 * iteration.num_tokens

    def _write(self, rows: dict[str, tuple[Row, int, list[int]]]) -> None:
        written: Counter[tuple[int, int]] = Counter()
        for row, count, draft in rows.values():
            tokens = row.tokens + draft
            for place in range(row.computed, row.computed + count + len(draft)):
                written[self._slot(row, place)] += 1
                self.slots[self._slot(row, place)] = tuple(tokens[: place + 1])
        assert max(written.values(), default=1) == 1, "two requests write one slot"

    def _slot(self, row: Row, place: int) -> tuple[int, int]:
        return row.blocks[place // self.size], place % self.size

    def _erase(self, blocks: list[int]) -> None:
        """Erase blocks that get a new owner. No other request may hold them."""
        held = {block for row in self.rows.values() for block in row.blocks}
        assert held.isdisjoint(blocks), f"{held.intersection(blocks)} are taken from another request"
        self.slots = {slot: tokens for slot, tokens in self.slots.items() if slot[0] not in blocks}
