"""LineBudget: how much an iteration may compute in which lines of batches run and nobody else."""

from __future__ import annotations

from dataclasses import replace

from services.scheduling.budget import Budget
from services.scheduling.cost_model import CostModel
from services.scheduling.knobs import Knobs

TARGET = 0.05  # seconds
LEAST_SHARE = 2.0  # times the cost of one decode alone, where that is more


class LineBudget(Budget):
    """A request that arrives while such an iteration runs waits for its end. So it takes about `TARGET` seconds at
    most: prompts are computed in chunks, and only as many lines decode as fit, at least one."""

    def __init__(self, knobs: Knobs, cost: CostModel) -> None:
        self._asked = knobs.tbt_target
        super().__init__(replace(knobs, tbt_target=TARGET), cost)

    def begin(self) -> None:
        super().begin()
        target = max(TARGET, LEAST_SHARE * self._cost.seconds(1, 1 + int(self._context)))
        self._target = target if self._asked is None else min(target, self._asked)

    def decodes(self, wanted: int) -> int:
        wanted = super().decodes(wanted)
        law = self._cost.law
        each = law.per_token + law.per_pair * (1 + self._context)
        if not self._cost.known or each <= 0.0:
            return wanted
        assert self._target is not None
        return min(wanted, max(1, int((self._target - law.fixed) / each)))
