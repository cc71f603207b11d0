"""RequestState: what the engine remembers of a request between iterations."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from services.engine.batch.adjustments import Adjustments, AllowedTokens
from services.engine.batch.grammars import DraftMask, OutputGrammar, Words
from services.engine.batch.thinking import ThinkingLimit
from services.messages import Iteration, NewRequest, PromptLogprobs
from services.requests import SamplingParams


@dataclass(slots=True)
class PromptScores:
    """The log probabilities of one prompt as far as it is computed; `failed` says why there are none."""

    logprobs: PromptLogprobs = field(default_factory=lambda: PromptLogprobs([], [], [], []))
    failed: str | None = None


@dataclass(slots=True)
class RequestState:
    """One request: its tokens, how many of them are computed, and the blocks that hold their keys and values."""

    id: str
    token_ids: list[int]  # prompt + output
    num_prompt_tokens: int
    sampling: SamplingParams
    num_computed_tokens: int = 0
    blocks: array[int] = field(default_factory=lambda: array("i"))
    num_shared_blocks: int = 0  # the first blocks, which were full when it came
    adjustments: Adjustments | None = None  # of its logits; set by the sampler
    allowed: AllowedTokens | None = None  # the only tokens that may be sampled; None: all. Set by the sampler
    grammar: OutputGrammar | DraftMask | None = None  # of its output; set by the sampler
    thinking: ThinkingLimit | None = None  # of its reasoning; set by the sampler
    prompt_scores: PromptScores | None = (
        None  # until the first output token, if the prompt's log probabilities are asked
    )
    unknown: int = 0  # tokens after `token_ids` that iterations sample whose results the host has not read
    row: int = 0  # of the last of them, in the last draw
    # whether its next token can be sampled before the host knows the last one: nothing that its settings do to logits
    # depends on which tokens its output has
    runs_ahead: bool = field(init=False)
    unchanged: bool = field(init=False)  # whether its settings never do anything to logits
    failed: bool = False  # iterations that were sent before the scheduler knew it may still name the request

    @classmethod
    def from_message(cls, new: NewRequest) -> RequestState:
        """A request as the scheduler sends it. One that already has output tokens has its prompt's scores already."""
        asked = new.sampling.prompt_logprobs is not None and len(new.token_ids) == new.num_prompt_tokens
        assert not (asked and new.num_computed_tokens), f"{new.id}: logits of computed tokens are wanted"
        return cls(
            new.id,
            list(new.token_ids),
            new.num_prompt_tokens,
            new.sampling,
            new.num_computed_tokens,
            prompt_scores=PromptScores() if asked else None,
        )

    def append(self, token: int, more: Sequence[int] = ()) -> None:
        """Add a sampled token, and `more` after right tokens of a draft, which are computed, too."""
        self.token_ids.append(token)
        self.token_ids += more
        self.num_computed_tokens += len(more)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.unknown

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    def __post_init__(self) -> None:
        s = self.sampling
        self.runs_ahead = not (
            s.grammar
            or s.thinking_token_budget
            or s.bad_words
            or s.presence_penalty
            or s.frequency_penalty
            or s.repetition_penalty != 1.0
        )
        self.unchanged = self.runs_ahead and not (s.allowed_token_ids or Adjustments.needed(s, 0))

    @property
    def is_plain_greedy(self) -> bool:
        """Whether its next token is the one with the largest logit."""
        return self.sampling.temperature <= 0.0 and self.adjustments is None and not self.is_limited

    @property
    def mask(self) -> Words | None:
        """The tokens that its grammar allows next, a bit each; None: all."""
        return self.grammar.mask if self.grammar else None

    @property
    def error(self) -> str | None:
        """Why no token can be sampled for it."""
        return (self.grammar.error if self.grammar else None) or (self.thinking.error if self.thinking else None)

    @property
    def is_limited(self) -> bool:
        """Whether only some tokens may be sampled next."""
        return self.allowed is not None or self.mask is not None


class RequestStates:
    """All requests that the scheduler has sent and not released, by id. Two requests share a block only if it was
    computed before the second one came."""

    def __init__(self, block_size: int, dirty: Iterable[int] = ()) -> None:
        """`dirty` are blocks whose contents are unknown."""
        self._states: dict[str, RequestState] = {}
        self._holders: Counter[int] = Counter()  # how many requests have a block
        self._dirty = set(dirty)  # and blocks of failed requests, which may hold NaN or infinity
        self._block_size = block_size

    def __getitem__(self, id: str) -> RequestState:
        return self._states[id]

    def __len__(self) -> int:
        return len(self._states)

    def known(self, ids: Iterable[str]) -> Iterator[RequestState]:
        """The requests of these ids that are here."""
        return (state for id in ids if (state := self._states.get(id)))

    def clear(self) -> None:
        """Forget all requests. Blocks of failed ones stay dirty."""
        for id in list(self._states):
            self._release(id)

    def _release(self, id: str) -> None:
        """Forget a request, if it is known."""
        if state := self._states.pop(id, None):
            self._holders.subtract(state.blocks)
            for block in state.blocks:
                if not self._holders[block]:
                    del self._holders[block]
            if state.failed or state.unknown:  # it may have failed in an iteration whose result is not read
                self._dirty.update(state.blocks)
        assert self._states or not self._holders, f"blocks {set(self._holders)} belong to no request"

    def own_blocks(self, state: RequestState) -> list[int]:
        """The blocks that a request has written, and those that no other request has; if it was released, those that
        nobody has."""
        if self._states.get(state.id) is not state:
            return [block for block in state.blocks if not self._holders[block]]
        return [b for i, b in enumerate(state.blocks) if i >= state.num_shared_blocks or self._holders[b] == 1]

    def apply(self, iteration: Iteration) -> list[int]:
        """Forget released requests, add new ones, append new blocks. Returns the dirty blocks among the new ones; the
        caller erases them before they are used.

        A block that a request shares is not erased. If it holds NaN, the request fails too; if it does not, the block
        was not why the other request failed.
        """
        for id in iteration.released:
            self._release(id)
        erase: set[int] = set()
        for new in iteration.new:
            assert new.id not in self._states, f"{new.id} is new but was not released"
            assert 0 < new.num_prompt_tokens <= len(new.token_ids), f"{new.id}: {new.num_prompt_tokens} prompt tokens"
            self._states[new.id] = RequestState.from_message(new)
        for id, blocks in iteration.new_blocks.items():
            state = self._states[id]
            if not state.blocks:
                state.num_shared_blocks = state.num_computed_tokens // self._block_size
            own = blocks[max(0, state.num_shared_blocks - len(state.blocks)) :]
            assert not any(self._holders[block] for block in own), f"{id} was given another's block"
            erase.update(self._dirty.intersection(own))
            self._holders.update(blocks)
            state.blocks.extend(blocks)
        self._dirty -= erase
        return sorted(erase)

    def scheduled(self, iteration: Iteration) -> list[tuple[RequestState, int]]:
        """The requests to compute, each with its number of tokens; failed ones are left out. Those with the same
        adapter are neighbours."""
        states = ((self._states[id], count) for id, count in iteration.scheduled.items())
        computed = [(state, count) for state, count in states if not state.failed]
        return sorted(computed, key=lambda each: each[0].sampling.adapter)

    @property
    def adapters(self) -> set[str]:
        """The digests of the adapters that requests have."""
        return {state.sampling.adapter for state in self._states.values()} - {""}
