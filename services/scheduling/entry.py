"""Entry: one request a scheduler holds, with what of it is not committed yet."""

from __future__ import annotations

from services.messages import Claim, Commit, End, IterationResult, Logprobs, NewRequest
from services.requests import Request
from services.scheduling.judge import Judge, Rules


class Entry:
    """A claimed request: its tokens, its judge, its end once there is one."""

    __slots__ = ("_committed", "_logprobs", "end", "judge", "request")

    def __init__(self, claim: Claim, rules: Rules) -> None:
        self.request = Request(claim.id, claim.arrival, claim.sampling, claim.prompt, list(claim.output))
        self.judge = Judge(rules, claim.sampling, len(claim.prompt))
        self.end = self._judge_earlier(claim.output)
        self._committed = len(claim.output)
        self._logprobs: list[Logprobs] | None = None if claim.sampling.logprobs is None else []

    @property
    def arrival(self) -> float:
        return self.request.arrival

    def _judge_earlier(self, output: list[int]) -> End | None:
        """Tell the judge what earlier owners committed. An end travels with its token, so the last token brings one
        only where this engine's rules are stricter than those of the owner before."""
        end = None
        for count, token in enumerate(output, 1):
            end = self.judge(token, count)
        return end

    def as_new(self) -> NewRequest:
        request = self.request
        return NewRequest(request.id, request.prompt + request.output, len(request.prompt), request.sampling)

    def append(self, token: int, result: IterationResult) -> End | None:
        """Take the token an iteration sampled; the end it brought, if any."""
        output = self.request.output
        output.append(token)
        if self._logprobs is not None:
            self._logprobs.append(result.logprobs[self.request.id])
        self.end = self.judge(token, len(output))
        return self.end

    def ends_by_length_next(self) -> bool:
        """Whether the token now being sampled is the last one allowed."""
        return len(self.request.output) + 1 >= self.judge.last

    def take_commit(self) -> Commit:
        """The tokens since the last call, and the end."""
        index, self._committed = self._committed, len(self.request.output)
        logprobs = self._logprobs
        if logprobs is not None:
            self._logprobs = []
        return Commit(self.request.id, index, self.request.output[index:], logprobs, self.end)
