"""The tests' scheduler: places blocks, mixes arrivals, chunks and batches at random, and checks the engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.messages import Iteration, IterationResult, Logprobs, NewRequest
from services.requests import SamplingParams

Drafts = Callable[["Job"], list[int]]


@dataclass
class Job:
    """A request of a test and its results."""

    id: str
    prompt: list[int]
    sampling: SamplingParams
    output: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    failed: str | None = None
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    sent: bool = False

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    @property
    def done(self) -> bool:
        return self.failed is not None or len(self.output) == self.sampling.max_new_tokens


class Driver:
    """Runs jobs on an engine. With a `rng`, arrivals, batch composition and chunks are random."""

    def __init__(
        self, engine: Any, rng: random.Random | None = None, max_batch: int = 4, drafts: Drafts | None = None
    ) -> None:
        """`drafts` returns guesses at the next tokens of a job that decodes."""
        self.drafts = drafts
        self.engine = engine
        self.rng = rng
        self.max_batch = max_batch
        self.free = list(range(engine.figures.num_blocks))
        if rng:
            rng.shuffle(self.free)
        self.released: list[str] = []
        self.step = 0
        engine.reset("e")

    def run(self, jobs: list[Job]) -> list[Job]:
        """Until all are done."""
        waiting = list(jobs)
        if self.rng:
            self.rng.shuffle(waiting)
        while any(not job.done for job in jobs):
            self.iterate([job for job in waiting if not job.done])
        return jobs

    def iterate(self, ready: list[Job]) -> IterationResult:
        batch = self._choose(ready)
        new, new_blocks, scheduled = [], {}, {}
        drafts: dict[str, list[int]] = {}
        for job in batch:
            if not job.sent:
                new.append(NewRequest(job.id, job.tokens, len(job.prompt), job.sampling))
                job.sent, job.computed = True, 0
            left = len(job.tokens) - job.computed
            count = self.rng.randint(1, left) if self.rng and self.rng.random() < 0.5 else left
            scheduled[job.id] = count
            if self.drafts and job.output and count == left and (draft := self.drafts(job)):
                drafts[job.id] = draft[: job.sampling.max_new_tokens - len(job.output) - 1]
            size = self.engine.figures.block_size
            lacking = -(-(job.computed + count + len(drafts.get(job.id, ()))) // size) - len(job.blocks)
            if lacking > 0:
                new_blocks[job.id] = [self.free.pop() for _ in range(lacking)]
                job.blocks += new_blocks[job.id]
            job.computed += count
        self.step += 1
        wants_forced = self.drafts is not None
        result = self.engine.run(
            Iteration("e", self.step, scheduled, new, new_blocks, self.released, {}, drafts, wants_forced)
        )
        self.released = []
        assert (result.epoch, result.step) == ("e", self.step)
        complete = {job.id for job in batch if job.computed == len(job.tokens)}
        assert set(result.tokens) | set(result.failed) >= complete
        assert set(result.tokens) <= complete
        for job in batch:
            self._take(job, result)
        return result

    def release(self, job: Job) -> None:
        """Release the request; scheduled again it is sent as new, with all its tokens."""
        self.released.append(job.id)
        self.free += job.blocks
        job.blocks, job.sent = [], False

    def run_interrupted(self, jobs: list[Job], share: float) -> list[Job]:
        """Like `run`, at random; after each iteration this share of the jobs is released, also within a prompt."""
        assert self.rng
        while ready := [job for job in jobs if not job.done]:
            self.iterate(ready)
            for job in jobs:
                if job.sent and self.rng.random() < share:
                    self.release(job)
        return jobs

    def crash(self, jobs: list[Job], iterations: int) -> list[Job]:
        """The jobs after so many iterations, to be continued by another engine from their tokens."""
        for _ in range(iterations):
            self.iterate([job for job in jobs if not job.done])
        assert any(job.output and not job.done for job in jobs)
        for job in jobs:
            job.sent, job.computed, job.blocks = False, 0, []
        return jobs

    def _choose(self, ready: list[Job]) -> list[Job]:
        if not self.rng:
            return ready[: self.max_batch]
        return self.rng.sample(ready, self.rng.randint(1, min(self.max_batch, len(ready))))

    def _take(self, job: Job, result: IterationResult) -> None:
        job.failed = result.failed.get(job.id)
        if job.id in result.tokens:
            tokens = result.tokens_of(job.id)
            job.output += tokens
            job.computed += len(tokens) - 1
            if job.id in result.logprobs:
                job.logprobs += result.logprobs_of(job.id)
        if job.done:
            self.release(job)


def outcome_in_any_batch(
    engine: Any, vocabulary: int, lengths: Sequence[int]
) -> list[tuple[list[int], list[Logprobs]]]:
    """Tokens and log probabilities of greedy requests with random prompts of these lengths, which have the same bits
    alone and together."""

    def jobs() -> list[Job]:
        drawn, params = random.Random(3), SamplingParams(max_new_tokens=8, logprobs=5)
        return [Job(f"r{i}/0", [drawn.randrange(vocabulary) for _ in range(n)], params) for i, n in enumerate(lengths)]

    together = Driver(engine).run(jobs())
    alone = [Driver(engine).run([job])[0] for job in jobs()]
    assert [job.logprobs for job in alone] == [job.logprobs for job in together]
    return [(job.output, job.logprobs) for job in alone]
