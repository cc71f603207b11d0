"""Budget: how many tokens an iteration may compute."""

from __future__ import annotations

from math import inf, sqrt

from services.scheduling.cost_model import CostModel
from services.scheduling.knobs import Knobs

FIRST_GUESS = 256  # tokens of an iteration with a time target before any iteration has been measured
LEAST_CHUNK = 16  # prompt tokens that are computed even if the time target cannot be met
# with an automatic target and without decodes, which such a chunk would delay: fewer rows take longer each
LEAST_ALONE = 64
BRIEF_TARGET = 0.05  # seconds; an automatic target while a tenant with few requests may come at any time
LEAST_STRETCH = 2.0  # an automatic target is at least this many times the cost of the decodes in the iteration


class Budget:
    """The budget of an iteration: a fixed number of tokens, and a time target that is compared with the estimated cost.

    Decodes take their share first. What is left goes to chunks of prompts, in order. A chunk can have any size. If the
    time target cannot be met, the first chunk still gets `LEAST_CHUNK` tokens, so that every prompt is computed in the
    end.

    With `Knobs.stretch_target`, the target is raised where it would leave little time to prompts beside what an
    iteration costs without them: on a slow engine, small chunks would read the weights again and again. For the same
    reason, the first chunk gets `alone` tokens there if nothing decodes.
    """

    alone = LEAST_ALONE

    def __init__(self, knobs: Knobs, cost: CostModel) -> None:
        self._fixed = knobs.token_budget
        self._least_target = knobs.tbt_target
        self._stretch = LEAST_STRETCH if knobs.stretch_target else 0.0
        self._cost = cost
        self._batch = knobs.max_batch_size
        self._context = 0.0  # mean number of context tokens of the decodes in the last iteration
        self._limited = self._fixed is not None or self._least_target is not None
        self._whole = knobs.whole_prompts
        self.brief = False  # whether an automatic target is at most `BRIEF_TARGET`
        self.begin()

    def begin(self) -> None:
        """Begin a new iteration."""
        self.num_tokens = 0  # given so far
        self.num_pairs = 0  # of query and key, given so far
        self._chunks = self._decodes = self._decode_pairs = 0
        self._shared, self._spared = False, 0  # whether newcomers have a share, and the tokens kept for them
        self._target = self._target_beside(0, 0)

    @property
    def max_tokens(self) -> float:
        """The largest number of tokens of an iteration, which is that of a prompt alone. Infinite without a budget."""
        return self._fitting(0, 0, 0, self._least(0), self._target_beside(0, 0)) if self._limited else inf

    def max_decodes(self, wanted: int) -> int:
        """Return how many of `wanted` decodes fit."""
        return wanted if self._fixed is None else min(wanted, self._fixed)

    def add_decodes(self, decodes: int, context: int) -> None:
        """Count the decodes of the iteration, which have `context` context tokens in total."""
        self.num_tokens += decodes
        self.num_pairs += decodes + context
        self._context = context / max(1, decodes)
        self._decodes, self._decode_pairs = self.num_tokens, self.num_pairs
        self._target = self._target_beside(self.num_tokens, self.num_pairs)

    def begin_running(self, newcomers: bool) -> None:
        """Begin the chunks of running prompts. With an automatic target they get half of the time, and of the tokens,
        that decodes leave if there are `newcomers`, so that a short request starts beside long prompts that came
        before it.
        """
        if not (newcomers and self._stretch) or self._target is None:
            return
        self._shared = True
        self._target -= (self._target - self._cost.seconds(self._decodes, self._decode_pairs)) / 2
        if self._fixed is not None:
            self._spared = (self._fixed - self._decodes) // 2

    def end_running(self) -> None:
        """End the chunks of running prompts. What is left goes to requests that start."""
        if self._shared:
            self._target = self._target_beside(self._decodes, self._decode_pairs)
            self._chunks = self._spared = 0

    def prompt_seconds(self, tokens: int, running: int) -> float:
        """Estimate how long a prompt of `tokens` tokens takes if no other prompt delays it. In each of its iterations,
        the `running` other requests, as far as they fit, decode one token with the context of the last iteration.

        Not included: chunks of other prompts, cached blocks of its prefix, and requests that end or start meanwhile.
        """
        others = min(running, self._batch - 1)
        pairs = int(others * (1 + self._context))
        target = self._target_beside(others, pairs)
        chunk = max(1, self._fitting(tokens // 2, others, pairs, self._least(others), target))
        count = -(-tokens // chunk)
        cost, own = self._cost, tokens * (tokens + 1) // 2
        return cost.seconds(tokens + count * others, own + count * pairs) + (count - 1) * cost.coefficients.fixed

    def has_room(self, stream: bool = False) -> bool:
        """Return whether a token of a prompt fits, or one of a `stream`, which the time does not limit."""
        if stream:
            return self._fixed is None or self.num_tokens < self._fixed - self._spared
        return not self._limited or self._room(0) > 0

    def take_chunk(self, context: int, wanted: int, stream: bool = False) -> int:
        """Take as many of `wanted` tokens with `context` context tokens as fit, and return their number. The time does
        not limit those of a `stream`: it stands still until they are computed, so nothing is gained by a later
        iteration."""
        count = wanted
        if stream and self._fixed is not None:
            count = min(wanted, self._fixed - self.num_tokens - self._spared)
        elif self._limited and not stream:
            count = min(wanted, self._room(context))
            if self._whole and count < wanted:
                count = 0 if self.num_tokens else wanted
        if count > 0:
            self.num_tokens += count
            self.num_pairs += count * context + count * (count + 1) // 2
            self._chunks += 1
        return max(0, count)

    @property
    def decodes_and_seconds(self) -> tuple[float, float]:
        """The number of decodes of the iteration, and what it would cost if it had nothing else."""
        return float(self._decodes), self._cost.seconds(self._decodes, self._decode_pairs)

    def take_draft(self, context: int) -> bool:
        """Take one token of a draft with `context` context tokens, if it fits; return whether it does."""
        tokens, pairs = self.num_tokens + 1, self.num_pairs + context + 1
        if self._fixed is not None and tokens > self._fixed:
            return False
        if self._target is not None and self._cost.seconds(tokens, pairs) > self._target:
            return False
        self.num_tokens, self.num_pairs = tokens, pairs
        return True

    def _room(self, context: int) -> int:
        least = 0 if self._chunks else self._least(self._decodes) // (2 if self._shared else 1)
        room = self._fitting(context, self.num_tokens, self.num_pairs, least, self._target)
        return room if self._fixed is None else min(room, self._fixed - self.num_tokens - self._spared)

    def _least(self, decodes: int) -> int:
        """Return how many tokens the first chunk beside these decodes gets even if the time target cannot be met."""
        return self.alone if self._stretch and not decodes else LEAST_CHUNK

    def _target_beside(self, decodes: int, pairs: int) -> float | None:
        """Return the time target in seconds of an iteration with these decodes, which have so many pairs."""
        if self._least_target is None or not self._stretch:
            return self._least_target
        least = min(self._least_target, BRIEF_TARGET) if self.brief else self._least_target
        return max(least, self._stretch * self._cost.seconds(max(1, decodes), max(1, pairs)))

    def _fitting(self, context: int, tokens: int, pairs: int, least: int, target: float | None) -> int:
        """Return how many tokens with `context` context tokens fit into an iteration that has `tokens` and `pairs`;
        at least `least`, if only the time target is exceeded.
        """
        room = inf if self._fixed is None else self._fixed - tokens
        if target is not None:
            time = self._affordable(context, tokens, pairs, target) if self._cost.known else FIRST_GUESS - tokens
            room = min(room, max(least, time))
        return int(min(room, 1 << 30))

    def _affordable(self, context: int, tokens: int, pairs: int, target: float) -> float:
        """Return the largest n with cost(tokens + n, pairs + n * context + n * n / 2) <= target, a quadratic in n."""
        cost = self._cost
        left = target - cost.seconds(tokens, pairs)
        if left <= 0:
            return 0.0
        per_token, per_pair = cost.coefficients.per_token, cost.coefficients.per_pair
        slope, bend = per_token + per_pair * (context + 0.5), per_pair / 2
        if bend == 0.0:
            return left / slope if slope else inf
        return (sqrt(slope * slope + 4 * bend * left) - slope) / (2 * bend)
