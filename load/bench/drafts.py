"""What drafts gain: with guesses of which a given share is right, beside what the cost model expects; on real texts."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

from load.bench.bench import CUT, Bench, PartResult
from load.report import table
from services.engine.engine import Engine
from services.messages import Claim
from services.models.info import ModelInfo
from services.requests import SamplingParams
from services.scheduling import CostModel, Knobs, Scheduler
from services.scheduling.drafting import Drafting
from services.text.tokenizer import Tokenizer

MOST = 16  # tokens of a draft, as `speculative_config=auto` allows
SHARES = (0.0, 0.5, 0.9, 1.0)
TURNS = 2  # of which the best counts
PROMPT, OUTPUT = 64, 48  # tokens of a request with scripted guesses
ANSWER = 128  # most tokens of an answer to a real text
TARGET = 0.18  # seconds between tokens, as on a CPU by default
ROOT = Path(__file__).parents[2]
TEXTS = {
    "editing": ("Replace each `name` by `label` in this file, and return the whole file:\n\n{}", "**/[c-s]*.py", 1500),
    "summary": ("Summarize this text, with quotations:\n\n{}", "docs/[a-m]*.md", 2000),
    "chat": ("{}", "", 0),
}
CHATS = ("Write a story about a fox.", "Explain photosynthesis.", "Why is the sky blue?", "What is recursion?")
AGAIN = "Please: {}"  # how a text was asked about before
FIELDS = ("title_of_the_document", "name_of_the_author", "language_of_the_text", "number_of_pages")
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string", "maxLength": 12} for name in FIELDS},
    "required": list(FIELDS),
    "additionalProperties": False,
}


@dataclass(slots=True)
class Ran:
    """A run of some requests. `seconds` and `tokens` are those of iterations without prompts."""

    outputs: dict[str, list[int]]
    seconds: float
    tokens: int
    guesses: float
    right: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def drafts(bench: Bench) -> PartResult:
    """Tokens per second with drafts, as multiples of those without. Outputs must be equal."""
    engine, rows = bench.engine, []
    if not engine.figures.verifies_drafts:
        return PartResult("This engine verifies no drafts.", [])
    cost, ends = CostModel(), frozenset[int]()
    if bench.folder:
        ends = ModelInfo.load(bench.folder, bench.options.cache_dir).eos_token_ids
    for kind, before, claims, share in _kinds(bench):
        if bench.budget.spent:
            break
        rows.append(_compare(kind, engine, before, claims, cost, share, ends if share is None else ()))
    header = ["drafts", "streams", "tokens/s without", "with", "gain", "expected", "guesses", "right"]
    text = table(header, rows) + (f"\n\n{CUT}" if bench.budget.spent else "")
    return PartResult(text, [dict(zip(header, row, strict=True)) for row in rows])


def _kinds(bench: Bench) -> Iterator[tuple[str, list[Claim], list[Claim], float | None]]:
    """What is measured: its name, what is asked before, requests, and the share of guesses that are right; None for
    drafts as they are."""
    prompts = [random.Random(i).choices(range(10, 250), k=PROMPT) for i in range(max(bench.scale.drafted))]
    for streams in bench.scale.drafted:
        if bench.folder:
            for kind, before, claims in _texts(Tokenizer.load(bench.folder), streams):
                yield kind, before, claims, None
        for share in SHARES:
            claims = [_claim(i, prompt, OUTPUT) for i, prompt in enumerate(prompts[:streams])]
            yield f"{share:g} right", [], claims, share


def _claim(i: int, prompt: list[int], most: int, **sampling: Any) -> Claim:
    return Claim(str(i), float(i), prompt, [], SamplingParams(most, temperature=0.0, **sampling), remember=True)


def _texts(tokenizer: Tokenizer, streams: int) -> Iterator[tuple[str, list[Claim], list[Claim]]]:
    """Requests with files of this repository, under a schema, and after the same questions in other words."""

    def encode(text: str) -> list[int]:
        message = [{"role": "user", "content": text}]
        return tokenizer.encode(tokenizer.apply_chat_template(message), add_special_tokens=False)

    for kind, (question, pattern, length) in TEXTS.items():
        files = sorted(ROOT.glob(pattern)) if pattern else []
        texts = [file.read_text()[:length] for file in files if file.stat().st_size > length] or list(CHATS)
        prompts = [encode(question.format(text)) for text in texts[:streams]]
        yield kind, [], [_claim(i, prompts[i % len(prompts)], ANSWER) for i in range(streams)]
    grammar = json.dumps({"grammars": [{"json_schema": SCHEMA}]})
    schema = [_claim(i, encode("Describe a book."), ANSWER, grammar=grammar) for i in range(streams)]
    yield "schema", [], schema
    asked = [_claim(-1 - i, encode(AGAIN.format(text)), ANSWER) for i, text in enumerate(CHATS)]
    yield "chat again", asked, [_claim(i, encode(CHATS[i % len(CHATS)]), ANSWER) for i in range(streams)]
    yield "schema again", [_claim(-1, encode("Describe a play."), ANSWER, grammar=grammar)], schema


def _compare(
    kind: str,
    engine: Engine,
    before: Sequence[Claim],
    claims: Sequence[Claim],
    cost: CostModel,
    share: float | None = None,
    ends: Collection[int] = (),
) -> list[Any]:
    without = [_run(engine, before, claims, cost, 0, ends)]
    outputs = without[0].outputs
    answers = {tuple(claim.prompt): outputs[claim.id] for claim in claims}
    given = []
    for turn in range(TURNS):
        with _scripted(answers, share):
            given.append(_run(engine, before, claims, cost, MOST, ends))
        if turn:
            without.append(_run(engine, before, claims, cost, 0, ends))
    for ran in (*without, *given):
        assert ran.outputs == outputs, f"{kind}: drafts changed tokens"
    slow, fast = (max(ran.rate for ran in runs) for runs in (without, given))
    ran = given[-1]
    expected = _expected(cost, len(claims), ran)
    return [
        kind,
        len(claims),
        f"{slow:.1f}",
        f"{fast:.1f}",
        f"{fast / slow:.2f}",
        f"{expected:.2f}",
        int(ran.guesses),
        int(ran.right),
    ]


def _expected(cost: CostModel, streams: int, ran: Ran) -> float:
    """The gain by the cost model, if its iterations had as many guesses each as these had on average."""
    context = PROMPT + OUTPUT // 2
    iterations = max(1.0, (ran.tokens - ran.right) / streams)
    tokens = streams + ran.guesses / iterations
    plain = cost.seconds(streams, streams * context)
    return (ran.tokens / iterations / streams) * plain / cost.seconds(round(tokens), round(tokens * context))


@contextmanager
def _scripted(answers: dict[tuple[int, ...], list[int]], share: float | None) -> Iterator[None]:
    """Inside this context, guesses are the next tokens of these answers, a `share` of which is right; unless it is
    None."""
    drawn = random.Random(1)

    def scripted(drafting: Drafting, most: int) -> list[int]:
        rest = answers[tuple(drafting._text._prompt)][len(drafting._output) :]
        return [token if drawn.random() < (share or 0.0) else token ^ 1 for token in rest[:most]]

    with nullcontext() if share is None else patch.object(Drafting, "find", scripted):
        yield


def _run(
    engine: Engine,
    before: Sequence[Claim],
    claims: Sequence[Claim],
    cost: CostModel,
    most: int,
    ends: Collection[int],
) -> Ran:
    """Run `claims` after the requests of `before` have ended."""
    knobs = Knobs(
        max_batch_size=len(claims),
        tbt_target=TARGET,
        stretch_target=True,
        admission="on_demand",
        num_speculative_tokens=most,
        remember_seconds=inf,
    )
    scheduler = Scheduler(epoch="e", figures=engine.figures, knobs=knobs, eos_token_ids=ends, cost=cost)
    engine.reset("e")
    scheduler.add(list(before))
    while iteration := scheduler.select():
        scheduler.update(engine.run(iteration))
    scheduler.take_commits()
    scheduler.take_counters()
    scheduler.add(list(claims))
    outputs: dict[str, list[int]] = {claim.id: [] for claim in claims}
    seconds, tokens = 0.0, 0
    while iteration := scheduler.select():
        began = time.perf_counter()
        result = engine.run(iteration)
        scheduler.update(result)
        if not iteration.new and all(count == 1 for count in iteration.scheduled.values()):
            seconds += time.perf_counter() - began
            tokens += result.num_tokens
        for commit in scheduler.take_commits():
            outputs[commit.id] += commit.tokens
    counted = scheduler.take_counters()
    guesses, right = (counted.get(f"vllm:spec_decode_num_{name}_tokens", 0.0) for name in ("draft", "accepted"))
    return Ran(outputs, seconds, tokens, guesses, right)
