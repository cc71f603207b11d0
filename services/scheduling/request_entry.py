"""Entry: one request a scheduler holds: how far it is computed, what of it was sent to the pool and to the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import inf

from services.messages import Claim, Commit, End, IterationResult, Logprobs, NewRequest
from services.requests import BATCH_CLASS
from services.scheduling.prefix import PrefixKeys
from services.scheduling.stopping import Judge, Rules

SUSPECT = 2  # strikes from which on a request must first show, alone, that it does not kill engines


class Entry:
    """A claimed request: its tokens, its judge, its end once there is one.

    Two counters tell what is to be computed, one chasing the other: `num_computed_tokens` counts what iterations in
    flight compute, and `num_tokens` the tokens they sample, which nobody here knows yet.
    """

    __slots__ = (
        "_claim",
        "_logprobs",
        "active",
        "cached",
        "capacity",
        "due",
        "end",
        "flights",
        "gone",
        "id",
        "judge",
        "keys",
        "last",
        "line",
        "next_full",
        "num_computed_tokens",
        "num_tokens",
        "output",
        "priority",
        "prompt",
        "published",
        "rank",
        "sent",
        "tenant",
        "told",
    )

    def __init__(self, claim: Claim, rules: Rules, keys: PrefixKeys, now: float) -> None:
        self._claim = claim
        self.id, self.rank, self.priority, self.tenant = claim.id, claim.rank, claim.priority, claim.tenant
        self.line = claim.priority >= BATCH_CLASS  # of a batch: it runs where nobody else wants to
        self.prompt, self.output = claim.prompt, list(claim.output)
        self.judge = Judge(rules, claim.sampling, len(claim.prompt))
        self.last = len(claim.prompt) + self.judge.last  # tokens at which it ends by length
        self.end = self._judge_earlier(claim.output)
        self.due = now - claim.waited + claim.ttft if claim.ttft else None  # when its first token should be there
        self.keys = keys
        self.cached: int | None = None  # prompt tokens it found computed at first; None: it did not start yet
        self.gone = False  # the scheduler has taken it from its lists: it ended, or is another's
        self._logprobs: list[Logprobs] | None = None if claim.sampling.logprobs is None else []  # since the claim
        self.sent = len(claim.output)  # output tokens that went to the pool, or came from it
        self.flights = 0  # iterations in flight that compute it
        self.num_tokens = len(claim.prompt) + len(claim.output)
        self.begin(0, 0)

    def begin(self, capacity: int, computed: int) -> None:
        """It holds blocks for `capacity` tokens, `computed` of them found there; or none, and starts anew."""
        self.capacity = capacity
        self.num_computed_tokens = computed
        self.active = False  # in line for iterations: it holds blocks and nobody has taken its place
        self.told = -1  # blocks the engine knows of; -1: it does not know the request
        self.published = 0  # full blocks that others may share
        self.next_full = inf  # computed tokens from which on one more can be published

    @property
    def named_ids(self) -> Iterator[int]:
        """The token ids that its settings name, some of them several times."""
        sampling = self._claim.sampling
        return chain(sampling.logit_bias, sampling.allowed_token_ids, *sampling.bad_words)

    @property
    def scoring(self) -> bool:
        """Whether its prompt's log probabilities are still to be computed: they come with the first output token."""
        return self._claim.sampling.prompt_logprobs is not None and not self.output

    @property
    def suspect(self) -> bool:
        """Whether it may be the one that killed engines: it was there each time, and brought no token in between."""
        return self._claim.strikes >= SUSPECT and len(self.output) == len(self._claim.output)

    @property
    def num_known_tokens(self) -> int:
        """Tokens that are here: those that iterations in flight sample are not."""
        return len(self.prompt) + len(self.output)

    @property
    def closing(self) -> bool:
        """Whether a token that is being sampled, or is here, is the last one allowed."""
        return self.num_tokens >= self.last

    def _judge_earlier(self, output: list[int]) -> End | None:
        """Tell the judge what earlier owners committed. An end travels with its token, so the last token brings one
        only where this engine's rules are stricter than those of the owner before."""
        end = None
        for count, token in enumerate(output, 1):
            end = self.judge(token, count)
        return end

    def as_new(self, computed: int) -> NewRequest:
        """For an engine that has the first `computed` tokens in the blocks it is told."""
        return NewRequest(self.id, self.prompt + self.output, len(self.prompt), self._claim.sampling, computed)

    def as_claim(self, count: int) -> Claim:
        """This request as if it had been claimed with `count` output tokens."""
        return replace(self._claim, output=self.output[:count])

    def append(self, token: int, result: IterationResult) -> End | None:
        """Take the token an iteration sampled; the end it brought, if any."""
        output = self.output
        output.append(token)
        if self._logprobs is not None:
            self._logprobs.append(result.logprobs[self.id])
        self.end = self.judge(token, len(output))
        return self.end

    def take_commit(self) -> Commit:
        """The tokens since the last call, and the end."""
        index, self.sent = self.sent, len(self.output)
        logprobs = None if self._logprobs is None else self._logprobs[index - len(self._claim.output) :]
        end = replace(self.end, cached=self.cached) if self.end and self.cached else self.end
        return Commit(self.id, index, self.output[index:], logprobs, end)

    def rewind(self, count: int) -> bool:
        """Let the next commit begin at token `count`, which was sent before. False, and nothing done, where the
        log probabilities from there on are an earlier owner's: those are not here."""
        assert count <= self.sent, f"{self.id}: rewind to {count}, only {self.sent} tokens were sent"
        if self._logprobs is not None and count < len(self._claim.output):
            return False
        self.sent = count
        return True
