"""A scheduler that gets its results from a script instead of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from services.messages import Claim, Commit, EngineFigures, Iteration, IterationResult, Logprobs
from services.requests import SamplingParams
from services.scheduling import CostModel, Knobs, Scheduler, WarmUpTime
from services.text import TextTables

EOS = 2
WORD = 7  # a token that ends nothing


def claim(
    id: str, arrival: float, prompt: int, new: int, output: tuple[int, ...] = (), strikes: int = 0, **sampling: object
) -> Claim:
    params = SamplingParams(new, **sampling)  # type: ignore[arg-type]
    return Claim(id, arrival, [WORD] * prompt, list(output), params, strikes)


@dataclass
class Script:
    """A scheduler and a script: `step` runs one iteration and returns the tokens of the script."""

    scheduler: Scheduler
    commits: list[Commit] = field(default_factory=list)
    ran: dict[str, int] = field(default_factory=dict)  # the number of iterations of each request
    iteration: Iteration | None = None

    def select(self) -> Iteration | None:
        self.iteration = self.scheduler.select()
        for id in self.iteration.scheduled if self.iteration else ():
            self.ran[id] = self.ran.get(id, 0) + 1
        return self.iteration

    @staticmethod
    def result_of(
        iteration: Iteration,
        tokens: dict[str, int] | None = None,
        failed: dict[str, str] | None = None,
        elapsed: float = 0.0,
    ) -> IterationResult:
        """Return a result with the given `tokens`, and WORD for other requests, also after each WORD of a draft."""
        failed = failed or {}
        sampled = {id: (tokens or {}).get(id, WORD) for id in iteration.scheduled if id not in failed}
        one = Logprobs(-0.5, [(WORD, -0.5)])
        logprobs = {id: one if token == WORD else Logprobs(-0.5, [(token, -0.5)]) for id, token in sampled.items()}
        more = {
            id: [*takewhile(WORD.__eq__, draft)] for id, draft in iteration.drafts.items() if sampled.get(id) == WORD
        }
        more = {id: right for id, right in more.items() if right}
        after = {id: [one] * len(right) for id, right in more.items()}
        return IterationResult(iteration.epoch, iteration.step, sampled, logprobs, failed, elapsed, more, after)

    def finish(
        self, tokens: dict[str, int] | None = None, failed: dict[str, str] | None = None, elapsed: float = 0.0
    ) -> list[Commit]:
        """Pass the result of the iteration in flight. Returns the commits."""
        assert self.iteration is not None
        self.scheduler.update(self.result_of(self.iteration, tokens, failed, elapsed))
        commits = self.scheduler.take_commits()
        self.commits += commits
        return commits

    def step(
        self, tokens: dict[str, int] | None = None, failed: dict[str, str] | None = None, elapsed: float = 0.0
    ) -> list[Commit]:
        assert self.select() is not None
        return self.finish(tokens, failed, elapsed)

    @property
    def batch(self) -> dict[str, int]:
        assert self.iteration is not None
        return self.iteration.scheduled


def scripted(
    kind: type[Scheduler] = Scheduler,
    blocks: int = 100,
    batch: int = 8,
    length: int = 200,
    text: TextTables | None = None,
    knobs: Knobs | None = None,
    now: Callable[[], float] = float,
    cached_blocks: Mapping[int, bytes] | None = None,
    warm_up: WarmUpTime | None = None,
    cost: CostModel | None = None,
) -> Script:
    """Create a scheduler of `kind` with blocks of 4 tokens."""
    return Script(
        kind(
            epoch="e1",
            figures=EngineFigures("m", length, blocks, 4, 100, "n"),
            knobs=knobs or Knobs(max_batch_size=batch),
            eos_token_ids=[EOS],
            text=text,
            warm_up=warm_up,
            cost=cost,
            now=now,
            cached_blocks=cached_blocks,
        )
    )
