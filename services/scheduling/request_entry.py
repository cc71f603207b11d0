"""RequestEntry: a request of a scheduler, with what of it is computed and what the pool and the engine know of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import inf

from services.messages import Claim, Commit, End, EngineFigures, IterationResult, Logprobs, NewRequest
from services.requests import is_line
from services.scheduling.block_pool import BlockHashes
from services.scheduling.drafting import Drafting
from services.scheduling.stopping import StopChecker, StopRules

SUSPECT = 2  # from this number of strikes on, a request has to run alone until it brings a token


class RequestEntry:
    """A claimed request.

    Two counters say what is to be computed: `num_computed_tokens` chases `num_tokens`. Both include the iterations in
    flight: the first counts the tokens that these compute, the second the tokens that they will sample.
    """

    __slots__ = (
        "_claim",
        "_logprobs",
        "active",
        "adapter",
        "block_hashes",
        "cache_salt",
        "capacity",
        "drafting",
        "end",
        "id",
        "is_line",
        "max_tokens",
        "num_blocks_sent",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_in_flight",
        "num_output_sent",
        "num_published_blocks",
        "num_reached_tokens",
        "num_tokens",
        "output",
        "priority",
        "prompt",
        "publish_at",
        "rank",
        "remember",
        "removed",
        "stop_checker",
        "tenant",
        "ttft_deadline",
    )

    def __init__(self, claim: Claim, rules: StopRules, block_hashes: BlockHashes, now: float) -> None:
        self._claim = claim
        self.id, self.rank, self.priority, self.tenant = claim.id, claim.rank, claim.priority, claim.tenant
        self.adapter = claim.sampling.adapter
        self.cache_salt, self.remember = claim.sampling.cache_salt, claim.remember
        self.is_line = is_line(claim.priority)  # a line of a batch: it runs if no other request is here
        self.prompt, self.output = claim.prompt, list(claim.output)
        self.stop_checker = StopChecker(rules, claim.sampling, len(claim.prompt))
        self.max_tokens = len(claim.prompt) + self.stop_checker.max_output_tokens  # tokens at which it ends by length
        self.end = self._check_claimed(claim.output)
        self.ttft_deadline = now - claim.waited + claim.ttft if claim.ttft else None  # of the first token
        self.block_hashes = block_hashes
        # prompt tokens found in the cache at first; None: not started yet. An earlier owner's number is not known
        self.num_cached_tokens = 0 if claim.output else None
        self.removed = False  # it ended, or belongs to another scheduler
        self._logprobs: list[Logprobs] | None = None if claim.sampling.logprobs is None else []  # since the claim
        self.num_output_sent = len(claim.output)  # output tokens that were sent to the pool, or came from it
        # tokens that earlier owners computed, or that were computed here before it lost its blocks
        self.num_reached_tokens = len(claim.prompt) + len(claim.output) - 1 if claim.output else 0
        self.drafting: Drafting | None = None  # made when it decodes, if there are drafts
        self.num_in_flight = 0  # iterations in flight that compute it
        self.num_tokens = len(claim.prompt) + len(claim.output)
        self.begin(0, 0)

    def begin(self, capacity: int, num_computed: int) -> None:
        """Set the state of a request with new blocks for `capacity` tokens, of which the first `num_computed` were
        found in the cache; or of a request without blocks (0, 0).
        """
        self.capacity = capacity
        self.num_computed_tokens = num_computed
        self.active = False  # true while it holds blocks and a place in the batch
        self.num_blocks_sent = -1  # blocks that the engine knows; -1: the engine does not know the request
        self.num_published_blocks = 0  # full blocks that other requests may share
        self.publish_at = inf  # the number of computed tokens at which one more block can be published

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether log probabilities of its prompt are still missing. They come with the first output token."""
        return self._claim.sampling.prompt_logprobs is not None and not self.output

    @property
    def suspect(self) -> bool:
        """Whether it may have killed engines: it was in flight each time, and has brought no token since."""
        return self._claim.strikes >= SUSPECT and len(self.output) == len(self._claim.output)

    @property
    def distrusts_cache(self) -> bool:
        """Whether it uses no cached blocks: those that it used may be why engines died."""
        return self._claim.strikes >= SUSPECT

    @property
    def num_claimed_tokens(self) -> int:
        """Output tokens that earlier owners have committed."""
        return len(self._claim.output)

    @property
    def num_known_tokens(self) -> int:
        """Tokens that the scheduler has. Those that iterations in flight will sample are not counted."""
        return len(self.prompt) + len(self.output)

    @property
    def finishing(self) -> bool:
        """Whether its last allowed token is here or is being sampled."""
        return self.num_tokens >= self.max_tokens

    def refusal(self, figures: EngineFigures) -> str | None:
        """Return why this engine can never run the request, with the value and the limit; None if it can.

        Gateways refuse the same, but by the figures of the largest engine, which may be another one. A token id outside
        the vocabulary would crash a CUDA process.
        """
        for id in (min(self.prompt), max(self.prompt), *self._named_ids()):
            if not 0 <= id < figures.vocab_size:
                return f"token id {id} is outside the vocabulary of {figures.vocab_size}"
        if len(self.prompt) >= figures.max_model_len:
            return f"the prompt has {len(self.prompt)} tokens, the model's length is {figures.max_model_len}"
        needed = -(-self.max_tokens // figures.block_size)
        if needed > figures.num_blocks:
            return f"the request needs {needed} KV blocks, this engine has {figures.num_blocks}"
        return None

    def _named_ids(self) -> Iterator[int]:
        """Iterate over the token ids in its sampling parameters."""
        sampling = self._claim.sampling
        return chain(sampling.logit_bias, sampling.allowed_token_ids, *sampling.bad_words)

    def _check_claimed(self, output: list[int]) -> End | None:
        """Check the tokens that earlier owners committed. An end is committed together with its token, so the last
        token causes one only if the rules of this engine are stricter than those of the previous owner.
        """
        end = None
        for count, token in enumerate(output, 1):
            end = self.stop_checker.check_stop(token, count)
        return end

    def as_new(self, num_computed: int) -> NewRequest:
        """Return the message for an engine that has the first `num_computed` tokens in the blocks it gets."""
        return NewRequest(self.id, self.prompt + self.output, len(self.prompt), self._claim.sampling, num_computed)

    def as_claim(self, count: int) -> Claim:
        """Return this request as if it had been claimed with `count` output tokens."""
        return replace(self._claim, output=self.output[:count])

    def append(self, result: IterationResult) -> End | None:
        """Add the sampled tokens, up to the first that ends the request. Returns this end, if any."""
        output, tokens = self.output, result.tokens_of(self.id)
        before = len(output)
        for token in tokens:
            output.append(token)
            self.end = self.stop_checker.check_stop(token, len(output))
            if self.end:
                break
        if self._logprobs is not None:
            self._logprobs += result.logprobs_of(self.id)[: len(output) - before]
        if right := len(tokens) - 1:  # drafts were right: an iteration counts one token when it is selected
            if self.num_computed_tokens == self.num_tokens - 1:  # else it was preempted meanwhile
                self.num_computed_tokens += right
            self.num_tokens += right
        return self.end

    def take_commit(self) -> Commit:
        """Return the tokens since the last call, and the end if there is one."""
        index, self.num_output_sent = self.num_output_sent, len(self.output)
        logprobs = None if self._logprobs is None else self._logprobs[index - len(self._claim.output) :]
        cached = self.num_cached_tokens
        end = replace(self.end, cached=cached) if self.end and cached else self.end
        return Commit(self.id, index, self.output[index:], logprobs, end)

    def rewind(self, count: int) -> bool:
        """Make the next commit begin at token `count`, which was sent before. Returns False, and does nothing, if log
        probabilities from there on are missing, because an earlier owner had them.
        """
        assert count <= self.num_output_sent, f"{self.id}: rewind to {count}, only {self.num_output_sent} were sent"
        if self._logprobs is not None and count < len(self._claim.output):
            return False
        self.num_output_sent = count
        return True
