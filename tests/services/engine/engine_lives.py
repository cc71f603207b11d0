"""Owners of an engine die again and again; answers must equal those of a quiet run.

The real scheduler and the real engine run in this process, without pool and Ray: thousands of deaths in a few minutes.
An owner lives for some iterations with settings drawn at random (whole prompts and chunks, reserved blocks and blocks
on demand, shared prefixes, lookahead, drafts of which most guesses are right) and with too few blocks. Then all that it
has not committed is lost, and the next owner recomputes all open requests, on the same engine or on one with another
number of threads. Tokens and log probabilities must equal those of each request alone, to the last bit.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partialmethod
from unittest.mock import patch

from load.in_process import Engine
from services.messages import Claim, Commit, IterationResult, Logprobs
from services.requests import SamplingParams
from services.scheduling import Knobs, Scheduler
from services.scheduling.drafting import Drafting
from services.started import Started

AT_ONCE = 16  # open requests
LONGEST_LIFE = 40  # iterations
KNOBS = (
    Knobs(16),
    Knobs(8, prefix_caching=True),
    Knobs(16, lookahead=1, prefix_caching=True),
    Knobs(16, token_budget=24, admission="on_demand", prefix_caching=True),
    Knobs(5, token_budget=7, admission="on_demand", lookahead=1, prefix_caching=True),
    Knobs(16, token_budget=200, admission="on_demand", lookahead=1),
    Knobs(16, tbt_target=0.02, stretch_target=True, admission="on_demand", prefix_caching=True),
    Knobs(16, num_speculative_tokens=6, prefix_caching=True),
    Knobs(8, num_speculative_tokens=3, admission="on_demand", prefix_caching=True),
)


@dataclass(slots=True)
class CheckedRequest:
    """A request, its undisturbed answer, and how many of its tokens are committed."""

    id: str
    prompt: list[int]
    sampling: SamplingParams
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    committed: int = 0


@dataclass(slots=True)
class Findings:
    """What happened, and all differences that were found."""

    deaths: int = 0
    iterations: int = 0
    answers: int = 0
    tokens: int = 0  # committed and compared
    recomputed: int = 0  # committed tokens that new owners recomputed
    right: int = 0  # tokens of drafts that were kept
    wrong: list[str] = field(default_factory=list)


def draw_requests(
    count: int, longest_prompt: int, longest_output: int, vocab: int, draw: random.Random
) -> list[CheckedRequest]:
    """Greedy and seeded requests with log probabilities, some with penalties. Every second prompt shares a prefix with
    an earlier one."""
    made: list[CheckedRequest] = []
    for number in range(count):
        prompt = [draw.randrange(vocab) for _ in range(draw.randint(1, longest_prompt))]
        if number % 2:
            beginning = draw.choice(made).prompt
            prompt = (beginning[: draw.randint(1, len(beginning))] + prompt)[:longest_prompt]
        sampling = SamplingParams(
            draw.randint(1, longest_output),
            seed=number,
            temperature=float(number % 3 == 2),
            logprobs=3,
            ignore_eos=True,
        )
        if number % 5 == 3:
            sampling = replace(sampling, logit_bias={draw.randrange(vocab): -100.0}, repetition_penalty=1.2, top_p=0.9)
        made.append(CheckedRequest(f"r{number}/0", prompt, sampling))
    return made


def learn(engine: Engine, checked: Sequence[CheckedRequest]) -> None:
    """Compute the undisturbed answers: each request alone, its prompt in one chunk."""
    for one in checked:
        owner = _Owner(engine, f"quiet-{one.id}", Knobs(1), engine.figures.num_blocks)
        owner.add([one])
        while one.committed < one.sampling.max_new_tokens:
            owner.iterate(1.0)
            for commit in owner.commits():
                one.tokens += commit.tokens
                one.logprobs += commit.logprobs or []
                one.committed += len(commit.tokens)
        one.committed = 0


def disturb(
    engines: Sequence[Engine], checked: Sequence[CheckedRequest], blocks: int, deaths: int, draw: random.Random
) -> Findings:
    """Run `deaths` owners, each with `blocks` blocks, one after the other. All requests are submitted repeatedly."""
    findings, waiting, open_ = Findings(), deque[CheckedRequest](), list[CheckedRequest]()
    while findings.deaths < deaths:
        while len(open_) < min(AT_ONCE, len(checked)):
            if not waiting:
                waiting.extend(draw.sample(list(checked), len(checked)))
            if (one := waiting.popleft()) not in open_:
                open_.append(one)
        findings.recomputed += sum(one.committed for one in open_)
        owner = _Owner(draw.choice(engines), f"{findings.deaths}", draw.choice(KNOBS), blocks)
        with patch.object(Drafting, "find", partialmethod(_guess, checked, owner.engine.figures.vocab_size, draw)):
            _live(owner, open_, draw, findings)
        findings.deaths += 1
        findings.right += owner.right
        for one in [one for one in open_ if one.committed == one.sampling.max_new_tokens]:
            open_.remove(one)
            one.committed = 0
            findings.answers += 1
    return findings


def _guess(
    drafting: Drafting, checked: Sequence[CheckedRequest], vocab: int, draw: random.Random, most: int
) -> list[int]:
    """What follows in the undisturbed answer, with a few wrong tokens."""
    [answer] = (one.tokens for one in checked if one.prompt == drafting._text._prompt)
    rest = answer[len(drafting._output) :][:most]
    return [token if draw.random() < 0.8 else (token + 1) % vocab for token in rest]


def _live(owner: _Owner, open_: list[CheckedRequest], draw: random.Random, findings: Findings) -> None:
    """The life of an owner. Requests arrive in two parts, so that a prefix is needed while it is computed."""
    order = draw.sample(open_, len(open_))
    late = draw.randrange(len(order))
    owner.add(order[late:])
    by_id = {one.id: one for one in open_}
    pace = draw.choice((0.3, 1.0))
    for iteration in range(draw.randint(1, LONGEST_LIFE)):
        if iteration == 1:
            owner.add(order[:late])
        if not owner.iterate(pace if iteration else 1.0, draw):
            break
        findings.iterations += 1
        if draw.random() < 0.8:
            for commit in owner.commits():
                _compare(by_id[commit.id], commit.index, commit.tokens, commit.logprobs or [], owner, findings)


def _compare(
    one: CheckedRequest, index: int, tokens: list[int], logprobs: Sequence[Logprobs], owner: _Owner, findings: Findings
) -> None:
    assert index == one.committed, f"{one.id}: committed from {index}, {one.committed} were"
    end = index + len(tokens)
    findings.tokens += len(tokens)
    if (tokens, list(logprobs)) != (one.tokens[index:end], one.logprobs[index:end]):
        due = list(zip(one.tokens, one.logprobs, strict=True))[index:end]
        at = next(i for i, pair in enumerate(zip(tokens, logprobs, strict=True)) if pair != due[i])
        what = f"{one.id} token {index + at}: got {tokens[at]} {logprobs[at]}, undisturbed {due[at]}"
        findings.wrong.append(f"death {findings.deaths}, {owner.knobs}, {owner.engine.figures.numerics}: {what}")
    one.committed = end


class _Owner:
    """A scheduler under an epoch of its own."""

    def __init__(self, engine: Engine, epoch: str, knobs: Knobs, blocks: int) -> None:
        engine.reset(epoch)
        self.engine, self.knobs = engine, knobs
        self._scheduler = Scheduler(epoch=epoch, figures=replace(engine.figures, num_blocks=blocks), knobs=knobs)
        self._sent: deque[Started[IterationResult]] = deque()
        self.right = 0  # tokens of drafts that were kept

    def add(self, checked: Sequence[CheckedRequest]) -> None:
        """Add requests; their order is that of their ranks."""
        claims = [
            Claim(one.id, float(rank), one.prompt, one.tokens[: one.committed], one.sampling)
            for rank, one in enumerate(checked)
        ]
        self._scheduler.add(claims)

    def iterate(self, pace: float, draw: random.Random | None = None) -> bool:
        """Send the iterations that can be sent, fewer at random if `pace` is under 1, and take the oldest result. False
        if there is none."""
        while iteration := self._scheduler.select():
            self._sent.append(self.engine.start(iteration))
            if draw and draw.random() > pace:
                break
        if not self._sent:
            return False
        result = self._sent.popleft().result()
        self.right += result.num_tokens - len(result.tokens)
        self._scheduler.update(result)
        return True

    def commits(self) -> list[Commit]:
        return self._scheduler.take_commits()
