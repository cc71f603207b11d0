"""Entry: one request a scheduler holds, with what of it was sent to the pool and what was not."""

from __future__ import annotations

from services.messages import Claim, Commit, End, IterationResult, Logprobs, NewRequest
from services.requests import Request
from services.scheduling.judge import Judge, Rules

SUSPECT = 2  # strikes from which on a request must first show, alone, that it does not kill engines


class Entry:
    """A claimed request: its tokens, its judge, its end once there is one."""

    __slots__ = ("_claimed", "_logprobs", "_strikes", "end", "gone", "judge", "request", "sent")

    def __init__(self, claim: Claim, rules: Rules) -> None:
        self.request = Request(claim.id, claim.rank, claim.sampling, claim.prompt, list(claim.output))
        self.judge = Judge(rules, claim.sampling, len(claim.prompt))
        self.end = self._judge_earlier(claim.output)
        self.gone = False  # the scheduler has taken it from its lists: it ended, or is another's
        self.sent = len(claim.output)  # output tokens that went to the pool, or came from it
        self._claimed = len(claim.output)
        self._logprobs: list[Logprobs] | None = None if claim.sampling.logprobs is None else []  # since the claim
        self._strikes = claim.strikes

    @property
    def rank(self) -> float:
        return self.request.rank

    @property
    def suspect(self) -> bool:
        """Whether it may be the one that killed engines: it was there each time, and brought no token in between."""
        return self._strikes >= SUSPECT

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

    def as_claim(self, count: int) -> Claim:
        """This request as if it had been claimed with `count` output tokens."""
        r = self.request
        return Claim(r.id, r.rank, r.prompt, r.output[:count], r.sampling, self._strikes)

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
        index, self.sent = self.sent, len(self.request.output)
        logprobs = None if self._logprobs is None else self._logprobs[index - self._claimed :]
        return Commit(self.request.id, index, self.request.output[index:], logprobs, self.end)

    def rewind(self, count: int) -> bool:
        """Let the next commit begin at token `count`, which was sent before. False, and nothing done, where the
        log probabilities from there on are an earlier owner's: those are not here."""
        assert count <= self.sent, f"{self.request.id}: rewind to {count}, only {self.sent} tokens were sent"
        if self._logprobs is not None and count < self._claimed:
            return False
        self.sent = count
        return True
