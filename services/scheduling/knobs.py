"""Knobs: the options of a scheduler. The defaults are those of the paper's Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Knobs:
    """
    `max_batch_size`: the largest number of requests in an iteration.
    `token_budget`: the largest number of tokens in an iteration. Decodes go first, the rest goes to chunks of prompts.
    None: prompts are computed whole.
    `tbt_target`: seconds between tokens that an iteration should not exceed. It lowers the budget, by an estimate of
    the cost that is updated after each iteration. None: no target. `stretch_target`: on a slow engine, or beside
    decodes that take long, the target is raised so that prompts get a fair share of the time.
    `admission`: `reserve` takes blocks for prompt + max_new_tokens at the first selection; `on_demand` takes them as
    they fill, and preempts requests when they run out.
    `order`: `fcfs`, or `priority`: later classes give way to an earlier one whose first token is at risk.
    `batches_in_flight`: pipeline stages of the engine (the paper's `n_workers`), and one more for vectors, so that the
    engine has the next texts before those of the last iteration are committed. No request is in two of them.
    `lookahead`: 1 sends the next iteration of the same requests before the result is back, for engines of one stage.
    `num_speculative_tokens`: the largest number of tokens of a draft. 0: none. It needs an engine that verifies them.
    `whole_prompts`: a prompt is computed in one iteration, alone in it if it is over the budget.
    `prefix_caching`: full blocks of equal prefixes are shared; without it, only the next owner finds them, for the same
    request.
    `share_prefixes`: they are shared between tenants, too.
    """

    max_batch_size: int = 32
    token_budget: int | None = None
    tbt_target: float | None = None
    stretch_target: bool = False
    admission: Literal["reserve", "on_demand"] = "reserve"
    order: Literal["fcfs", "priority"] = "fcfs"
    batches_in_flight: int = 1
    lookahead: int = 0
    num_speculative_tokens: int = 0
    prefix_caching: bool = False
    share_prefixes: bool = False
    whole_prompts: bool = False

    def __post_init__(self) -> None:
        assert self.max_batch_size > 0, f"{self.max_batch_size = }"
        assert self.batches_in_flight > 0, f"{self.batches_in_flight = }"
        assert self.lookahead in (0, 1), f"{self.lookahead = }"
        assert self.lookahead == 0 or self.batches_in_flight == 1, "lookahead is for an engine of one stage"
        assert not (self.num_speculative_tokens and self.lookahead), "an iteration ahead does not know what to follow"
        # each request of a full batch gets at least one token, so that none starves
        assert self.token_budget is None or self.token_budget >= self.max_batch_size, f"{self.token_budget = }"
        assert not (self.whole_prompts and self.prefix_caching), "a cached prefix is not computed"
        assert self.tbt_target is None or self.tbt_target > 0, f"{self.tbt_target = }"

    @property
    def depth(self) -> int:
        """The number of iterations that are sent before the first of them is back."""
        return self.batches_in_flight + self.lookahead
