"""One request as its user saw it, and targets that it can meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

TARGETS = ("ttft", "tpot", "e2el")  # as `vllm bench serve --goodput` names them


@dataclass(frozen=True, slots=True)
class Sample:
    """All durations are milliseconds, and all but `late` and `gaps` begin when the request was to be sent: in an open
    loop that is its intended time, in a closed one the time at which it was sent.

    `at`: the intended time, in seconds since the epoch. `late`: from the intended time to the sending. `ttft`: to the
    first output, and for an answer that is not streamed to its end. `e2e`: to the end of the answer, or to the failure.
    `gaps`: between neighbouring events of the stream that brought output; an event may bring several tokens.
    """

    stage: int
    user: str
    path: str
    at: float
    late: float
    ttft: float | None
    e2e: float
    prompt_tokens: int | None
    output_tokens: int
    streamed: bool
    error: str | None = None
    gaps: Sequence[float] = field(default=(), repr=False)

    @property
    def tpot(self) -> float | None:
        """Milliseconds per output token after the first: (e2e - ttft) / (output_tokens - 1). None without a stream of
        at least two tokens."""
        if not self.streamed or self.ttft is None or self.output_tokens < 2:
            return None
        return (self.e2e - self.ttft) / (self.output_tokens - 1)

    @property
    def worst_gap(self) -> float | None:
        """The longest time that the stream stood still between two events with output."""
        return max(self.gaps, default=None)

    def meets(self, targets: Mapping[str, float]) -> bool:
        """Whether it was answered, and no measure is above its target. A measure that it does not have, as the `tpot`
        of a single token, is met."""
        measured = {"ttft": self.ttft, "tpot": self.tpot, "e2el": self.e2e}
        return self.error is None and all((measured[name] or 0.0) <= limit for name, limit in targets.items())

    def record(self) -> dict[str, Any]:
        """As JSON, with the measures that are computed."""
        return asdict(self) | {"tpot": self.tpot, "worst_gap": self.worst_gap}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Sample:
        """The inverse of `record`."""
        return cls(**{one.name: record[one.name] for one in fields(cls)})


def parse_targets(text: str) -> dict[str, float]:
    """`ttft:500 tpot:50` as milliseconds by name. Raises ValueError for other names, and for no number above 0."""
    targets = {}
    for part in text.split():
        name, colon, value = part.partition(":")
        if not colon or name not in TARGETS:
            raise ValueError(f"a target is NAME:MILLISECONDS with a name of {', '.join(TARGETS)}, not {part!r}")
        try:
            targets[name] = float(value)
        except ValueError:
            raise ValueError(f"{value!r} in the target {part!r} is no number of milliseconds") from None
        if not 0 < targets[name] < float("inf"):
            raise ValueError(f"the target {part!r} must be above 0 ms")
    return targets
