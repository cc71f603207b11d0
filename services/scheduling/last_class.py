"""The last class: lines of batches, which run while no other request is here and give way to any.

What is particular to it is here: when its requests run, how long their iterations take, and how soon the pool is asked
for others. Its counter of turns and its ranks are the pool's (`services/pool/lua/fragments/class.lua`).
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from services.scheduling.budget import LEAST_CHUNK, Budget
from services.scheduling.cost_model import CostModel
from services.scheduling.knobs import Knobs

LULL = 0.5  # seconds without other requests after which they run
CLAIM_INTERVAL = 0.02  # seconds between exchanges while they run
TARGET = 0.05  # seconds of one of their iterations
LEAST_SHARE = 2.0  # or this many times the cost of one decode, if that is more


class LineBudget(Budget):
    """The budget of iterations with nothing but lines of batches.

    A request that arrives waits for the end of the current iteration, which therefore takes about `TARGET` seconds
    at most: prompts are computed in chunks, and only as many lines decode as fit, but at least one.
    """

    alone = LEAST_CHUNK

    def __init__(self, knobs: Knobs, cost: CostModel) -> None:
        self._asked = inf if knobs.tbt_target is None or knobs.stretch_target else knobs.tbt_target
        super().__init__(replace(knobs, tbt_target=TARGET), cost)

    def _target_beside(self, decodes: int, pairs: int) -> float:
        target = max(TARGET, LEAST_SHARE * self._cost.seconds(1, 1 + int(self._context)))
        return min(target, self._asked)

    def max_decodes(self, wanted: int) -> int:
        wanted = super().max_decodes(wanted)
        fixed, per_token, per_pair = self._cost.coefficients
        each = per_token + per_pair * (1 + self._context)
        if not self._cost.known or each <= 0.0:
            return wanted
        assert self._target is not None
        return min(wanted, max(1, int((self._target - fixed) / each)))
