"""What a trace gave: of each job its tokens and when they came, of the engine what it computed for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from load.workloads import Job


@dataclass(slots=True)
class Answer:
    """Of one job. Times are seconds since the trace began; a token's is that of its commit."""

    job: Job
    arrived: float
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        """Seconds from its arrival to its first token."""
        return self.times[0] - self.arrived

    def gaps(self, begin: float, end: float) -> list[float]:
        """The seconds between one token and the next, of those tokens that were waited for between two moments."""
        return [after - before for before, after in pairwise(self.times) if after > begin and before < end]


@dataclass(frozen=True, slots=True)
class Ran:
    """One iteration of the engine: requests in it, tokens computed, tokens sampled, seconds in the engine."""

    requests: int
    computed: int
    sampled: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """A whole trace, answers in the order of its jobs. `counters` are those that the scheduler told the pool."""

    answers: Sequence[Answer]
    ran: Sequence[Ran]
    counters: dict[str, float]

    @property
    def outputs(self) -> list[list[int]]:
        return [answer.tokens for answer in self.answers]

    @property
    def seconds(self) -> float:
        """From the beginning to the last token."""
        return max(answer.times[-1] for answer in self.answers)

    @property
    def tokens(self) -> int:
        """Output tokens."""
        return sum(map(len, self.outputs))

    @property
    def throughput(self) -> float:
        """Output tokens a second."""
        return self.tokens / self.seconds

    @property
    def iterations(self) -> int:
        return len(self.ran)

    @property
    def at_once(self) -> float:
        """Requests of an iteration, on average over the engine's time."""
        return sum(ran.requests * ran.seconds for ran in self.ran) / sum(ran.seconds for ran in self.ran)

    @property
    def wasted(self) -> int:
        """Tokens that were sampled for requests that had ended."""
        return sum(ran.sampled for ran in self.ran) - self.tokens

    @property
    def hits(self) -> int:
        """Prompt tokens that were found computed."""
        return int(self.counters.get("vllm:prefix_cache_hits", 0))

    @property
    def preemptions(self) -> int:
        return int(self.counters.get("vllm:num_preemptions", 0))

    @property
    def recomputed(self) -> int:
        """Tokens computed more often than once, those in shared blocks and wasted ones aside. A request's last token
        is never computed."""
        once = sum(len(answer.job.prompt) + len(answer.tokens) - 1 for answer in self.answers)
        return sum(ran.computed for ran in self.ran) + self.hits - self.wasted - once
