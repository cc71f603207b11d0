"""IterationCost: how long an iteration may take before its engine counts as stuck."""

from __future__ import annotations

from services.messages import Iteration

PATIENCE = 4  # times the estimate
LEAST = 10.0  # seconds any iteration is given

# Pairs of token and context token that cost what one token costs elsewhere in the model: 6 * hidden size by count of
# operations, which is more than this for any model worth a stuck engine's notice.
PAIRS = 512

# What an iteration is given where no engine was warmed up and there is nothing to judge by. Killing a slow engine would
# repeat itself for ever, noticing a dead one late happens once.
COLD_SECONDS = 60.0
COLD_WORK = 1024  # up to as many tokens, from there on in proportion

FORGET = 0.99  # what is left of the slowest iteration of a size, an iteration of that size later


class IterationCost:
    """An upper bound of an iteration's cost, out of those that finished.

    An iteration costs a + b * tokens + c * pairs, none of them negative, so one of k times the work of another costs
    at most k times as much, and one of less work at most as much. The estimate is the least such bound, from the
    slowest iteration in recent times of each size (powers of two). Whatever engine and model, extrapolation errs on
    the side of patience, and gets better with every iteration of about that size.

    Pairs are counted for prompts, also where they come in chunks. The context of the others grows by a token each
    iteration: it is in the seconds of the ones just before.
    """

    def __init__(self) -> None:
        self._slowest: dict[int, float] = {}  # seconds, by the bits of the work
        self._begun: dict[str, tuple[int, int]] = {}  # prompts that are not through: tokens computed, and in all
        self._epoch = ""

    def finished(self, iteration: Iteration, seconds: float) -> None:
        size = self.work(iteration).bit_length()
        self._slowest[size] = max(seconds, FORGET * self._slowest.get(size, 0.0))
        self._follow(iteration)

    def estimate(self, iteration: Iteration) -> float:
        """Seconds."""
        now = self.work(iteration)
        if not self._slowest:
            return COLD_SECONDS * max(1.0, now / COLD_WORK)
        return min(seconds * max(1.0, now / (1 << size - 1)) for size, seconds in self._slowest.items())

    def limit(self, iteration: Iteration) -> float:
        """Seconds after which an engine that has not finished `iteration` is stuck."""
        return max(LEAST, PATIENCE * self.estimate(iteration))

    def work(self, iteration: Iteration) -> int:
        """Tokens to compute, with the pairs of prompts in the same coin."""
        contexts = {id: computed for id, (computed, _) in self._begun.items()}
        contexts |= {new.id: new.num_computed_tokens for new in iteration.new}
        counts = iteration.scheduled
        pairs = sum(counts[id] * context + counts[id] ** 2 // 2 for id, context in contexts.items() if id in counts)
        return sum(counts.values()) + pairs // PAIRS

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
