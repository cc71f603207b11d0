"""Knobs: how a scheduler chooses. Each is its own; the defaults are the paper's Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Knobs:
    """
    `max_batch_size`: requests of one iteration at most.
    `token_budget`: tokens of one iteration at most, decodes first, the rest to chunks of prompts; None: whole prompts.
    `tbt_target`: seconds between tokens that an iteration should not exceed; it lowers the budget, as what iterations
    cost is estimated anew after each. None: nothing is aimed at.
    `admission`: `reserve` holds blocks for prompt + max_new_tokens from the first selection on; `on_demand` takes them
    as they fill, and preempts when they run out.
    `order`: `fcfs`, or `priority`: later classes give way to an earlier one whose first token is at risk.
    `batches_in_flight`: pipeline stages of the engine (the paper's `n_workers`); no request is in two of them.
    `lookahead`: 1 sends the next iteration of the same requests before the result is back; for one stage.
    `prefix_caching`: full blocks of equal prefixes are shared; `share_prefixes`: across tenants too.
    """

    max_batch_size: int = 32
    token_budget: int | None = None
    tbt_target: float | None = None
    admission: Literal["reserve", "on_demand"] = "reserve"
    order: Literal["fcfs", "priority"] = "fcfs"
    batches_in_flight: int = 1
    lookahead: int = 0
    prefix_caching: bool = False
    share_prefixes: bool = False

    def __post_init__(self) -> None:
        assert self.max_batch_size > 0, f"{self.max_batch_size = }"
        assert self.batches_in_flight > 0, f"{self.batches_in_flight = }"
        assert self.lookahead in (0, 1), f"{self.lookahead = }"
        assert self.lookahead == 0 or self.batches_in_flight == 1, "lookahead is for an engine of one stage"
        # each request of a full batch gets at least one token, so that none starves
        assert self.token_budget is None or self.token_budget >= self.max_batch_size, f"{self.token_budget = }"
        assert self.tbt_target is None or self.tbt_target > 0, f"{self.tbt_target = }"

    @property
    def depth(self) -> int:
        """Iterations that are sent before the first of them is back."""
        return self.batches_in_flight + self.lookahead
