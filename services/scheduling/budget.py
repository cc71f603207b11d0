"""Budget: how many tokens an iteration may compute."""

from __future__ import annotations

from math import inf, sqrt

from services.scheduling.cost_model import CostModel
from services.scheduling.knobs import Knobs

FIRST_GUESS = 256  # tokens of an iteration under a time target, before any has been timed
LEAST_CHUNK = 16  # prompt tokens that go even where time is up


class Budget:
    """What is left of one iteration's budget: of tokens (fixed), and of time (a target, an estimate of the cost).

    Decodes always go; what they leave goes to chunks of prompts, in order. A chunk may have any size: where time is
    up, the first still gets `LEAST_CHUNK` tokens, so that prompts come to an end under any target.
    """

    def __init__(self, knobs: Knobs, cost: CostModel) -> None:
        self._fixed = knobs.token_budget
        self._target = knobs.tbt_target
        self._cost = cost
        self._batch = knobs.max_batch_size
        self._context = 0.0  # tokens that a decode of the last iteration was behind, as a mean
        self._limited = self._fixed is not None or self._target is not None
        self.begin()

    def begin(self) -> None:
        """A new iteration."""
        self.tokens = 0  # given so far
        self.pairs = 0  # of query and key, likewise
        self._chunks = 0

    @property
    def most(self) -> float:
        """Tokens an iteration may compute at most: those of a prompt alone, from its beginning. Infinite without a
        budget."""
        return self._fitting(0, 0, 0, LEAST_CHUNK) if self._limited else inf

    def decodes(self, wanted: int) -> int:
        """How many of so many requests get their one token."""
        return wanted if self._fixed is None else min(wanted, self._fixed)

    def took(self, decodes: int, context: int) -> None:
        """They are so many, behind `context` tokens in all."""
        self.tokens += decodes
        self.pairs += decodes + context
        self._context = context / max(1, decodes)

    def seconds(self, tokens: int, running: int) -> float:
        """How long a prompt takes that nobody else's delays: its iterations, in each of which the others that run
        (`running`, as many as fit beside it) have one token, behind as many as in the last iteration.

        Not foreseen: chunks of other prompts, blocks of its prefix that are there, and who ends or starts meanwhile.
        """
        others = min(running, self._batch - 1)
        pairs = int(others * (1 + self._context))
        chunk = max(1, self._fitting(tokens // 2, others, pairs, LEAST_CHUNK))
        count = -(-tokens // chunk)
        cost, own = self._cost, tokens * (tokens + 1) // 2
        return cost.seconds(tokens + count * others, own + count * pairs) + (count - 1) * cost.law.fixed

    def left(self) -> bool:
        """Some token of a prompt fits."""
        return not self._limited or self._room(0) > 0

    def chunk(self, context: int, wanted: int) -> int:
        """So many of `wanted` tokens behind `context` others fit; they are taken."""
        count = wanted
        if self._limited:
            count = min(wanted, self._room(context))
        if count > 0:
            self.tokens += count
            self.pairs += count * context + count * (count + 1) // 2
            self._chunks += 1
        return max(0, count)

    def _room(self, context: int) -> int:
        return self._fitting(context, self.tokens, self.pairs, 0 if self._chunks else LEAST_CHUNK)

    def _fitting(self, context: int, tokens: int, pairs: int, least: int) -> int:
        """So many tokens behind `context` others fit into an iteration that has `tokens` and `pairs`; `least` where
        its time is up."""
        room = inf if self._fixed is None else self._fixed - tokens
        if self._target is not None:
            time = self._affordable(context, tokens, pairs) if self._cost.known else FIRST_GUESS - tokens
            room = min(room, max(least, time))
        return int(min(room, 1 << 30))

    def _affordable(self, context: int, tokens: int, pairs: int) -> float:
        """The most n with cost(tokens + n, pairs + n * context + n * n / 2) <= target: a quadratic in n."""
        cost = self._cost
        assert self._target is not None
        left = self._target - cost.seconds(tokens, pairs)
        if left <= 0:
            return 0.0
        slope, bend = cost.law.per_token + cost.law.per_pair * (context + 0.5), cost.law.per_pair / 2
        if bend == 0.0:
            return left / slope if slope else inf
        return (sqrt(slope * slope + 4 * bend * left) - slope) / (2 * bend)
