"""Choice: the tokens that an iteration gives, by the number of their request."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.batch.request_state import Row
from services.messages import Logprobs


@dataclass(frozen=True, slots=True)
class Choice:
    """Of each request in its order. A token says nothing where the request is not sound, or nothing is possible."""

    tokens: list[int]
    sound: list[bool]  # whether its logits are finite at their best
    possible: list[bool]  # whether its settings leave any token to choose
    logprobs: dict[int, Logprobs]  # of those that ask


def is_plain(row: Row) -> bool:
    """Whether its token is the likeliest one, whatever it computed before."""
    return row.sampling.temperature <= 0.0 and row.adjustments is None and row.allowed is None
