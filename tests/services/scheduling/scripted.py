"""A scheduler with fake results: what an engine would answer, without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from services.messages import Claim, Commit, EngineFigures, Iteration, IterationResult, Logprobs
from services.requests import SamplingParams
from services.scheduling import Knobs, Scheduler
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
    """A scheduler under a script: `step` runs one iteration whose tokens the script gives."""

    scheduler: Scheduler
    commits: list[Commit] = field(default_factory=list)
    ran: dict[str, int] = field(default_factory=dict)  # iterations each request was in
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
        """A result with `tokens` where given, else a word."""
        failed = failed or {}
        sampled = {id: (tokens or {}).get(id, WORD) for id in iteration.scheduled if id not in failed}
        logprobs = {id: Logprobs(-0.5, [(token, -0.5)]) for id, token in sampled.items()}
        return IterationResult(iteration.epoch, iteration.step, sampled, logprobs, failed, elapsed)

    def finish(
        self, tokens: dict[str, int] | None = None, failed: dict[str, str] | None = None, elapsed: float = 0.0
    ) -> list[Commit]:
        """Give the result of the iteration in flight; the commits it brought."""
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
) -> Script:
    """A scheduler of `kind` with blocks of 4 tokens."""
    return Script(
        kind(
            epoch="e1",
            figures=EngineFigures("m", length, blocks, 4, 100, "n"),
            knobs=knobs or Knobs(max_batch_size=batch),
            eos_token_ids=[EOS],
            text=text,
            now=now,
        )
    )
