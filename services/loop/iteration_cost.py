"""IterationCost: how long an iteration may take before the engine counts as stuck."""

from __future__ import annotations

from services.messages import Iteration

PATIENCE = 4  # times the estimate
LEAST = 10.0  # seconds that any iteration may take
READING = 60.0  # seconds more for one with a new request whose adapter the engine may have to read: up to a gigabyte

# The number of pairs of a token and a context token that cost as much as one token in the rest of the model. Counted in
# operations it is 6 * hidden size, which is more than this for any model of practical size.
PAIRS = 512

# The estimate before any iteration has finished, if no engine was warmed up. It is generous: a slow engine that is
# killed would be killed again and again, while a stuck one is noticed late only once.
COLD_SECONDS = 60.0
COLD_WORK = 1024  # for this many tokens at most; in proportion for more

FORGET = 0.99  # factor by which the slowest time of a size decays with each iteration of that size


class IterationCost:
    """An upper bound of the cost of an iteration, learned from the iterations that finished.

    An iteration costs a + b * tokens + c * pairs with non-negative a, b and c. An iteration with k times the work of
    another one therefore costs at most k times as much, and one with less work costs at most as much. The estimate is
    the lowest of these bounds, computed from the slowest recent iteration of each size (powers of two). Extrapolation
    to other sizes gives too much time rather than too little, and improves with each iteration of about that size.

    Pairs are counted for prompts and chunks of prompts only. The context of decodes grows by one token per iteration,
    so the times of the last iterations include it.
    """

    def __init__(self) -> None:
        self._slowest: dict[int, float] = {}  # seconds, by the bits of the work
        self._begun: dict[str, tuple[int, int]] = {}  # unfinished prompts: computed tokens, all tokens
        self._epoch = ""

    def finished(self, iteration: Iteration, seconds: float) -> None:
        """Learn from an iteration that took `seconds`."""
        size = self.work(iteration).bit_length()
        self._slowest[size] = max(seconds, FORGET * self._slowest.get(size, 0.0))
        self._follow(iteration)

    def estimate(self, iteration: Iteration) -> float:
        """Return how many seconds `iteration` takes at most."""
        now = self.work(iteration)
        if not self._slowest:
            return COLD_SECONDS * max(1.0, now / COLD_WORK)
        return min(seconds * max(1.0, now / (1 << size - 1)) for size, seconds in self._slowest.items())

    def limit(self, iteration: Iteration) -> float:
        """Return the seconds after which an engine that has not finished `iteration` counts as stuck."""
        reading = READING if any(new.sampling.adapter for new in iteration.new) else 0.0
        return max(LEAST, PATIENCE * self.estimate(iteration)) + reading

    def work(self, iteration: Iteration) -> int:
        """Return the tokens to compute, plus the pairs of prompts converted to tokens."""
        if not self._begun and not iteration.new:
            return iteration.num_tokens
        contexts = {id: computed for id, (computed, _) in self._begun.items()}
        contexts |= {new.id: new.num_computed_tokens for new in iteration.new}
        counts = iteration.scheduled
        pairs = sum(counts[id] * context + counts[id] ** 2 // 2 for id, context in contexts.items() if id in counts)
        return iteration.num_tokens + pairs // PAIRS

    def _follow(self, iteration: Iteration) -> None:
        if iteration.epoch != self._epoch:
            self._epoch, self._begun = iteration.epoch, {}
        for id in iteration.released:
            self._begun.pop(id, None)
        self._begun |= {new.id: (new.num_computed_tokens, len(new.token_ids)) for new in iteration.new}
        for id, (computed, total) in list(self._begun.items()):
            computed += iteration.scheduled.get(id, 0)
            if computed < total:
                self._begun[id] = computed, total
            else:
                del self._begun[id]
