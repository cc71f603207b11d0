"""What drafts gain: with guesses of which a given share is right, beside what the cost model expects; on real texts."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

from load.bench.bench import CUT, Bench, Budget, PartResult
from load.report import table
from services.messages import Claim, Iteration, IterationResult
from services.models.info import ModelInfo
from services.requests import SamplingParams
from services.scheduling import CostModel, Knobs, Scheduler
from services.scheduling.drafting import FORCED, Drafting
from services.text.tokenizer import Tokenizer

MOST = 16  # tokens of a draft, as `speculative_config=auto` allows
SHARES = (0.0, 0.5, 0.9, 1.0)
TURNS = 2  # of which the best counts; the later are left out where the first takes too long
PROMPT = 64  # tokens of a request with scripted guesses
ANSWER = 128  # most tokens of an answer
LEAST = 24  # tokens of an answer that are computed however long it takes
SECONDS = 400.0  # of all cells together, where LEAST tokens take less than a cell's part of them
TARGET = 0.18  # seconds between tokens, as on a CPU by default
ROOT = Path(__file__).parents[2]
TEXTS = {
    "editing": ("Replace each `name` by `label` in this file, and return the whole file:\n\n{}", "**/[c-s]*.py", 1500),
    "summary": ("Summarize this text, with quotations:\n\n{}", "docs/[a-m]*.md", 2000),
    "chat": ("{}", "", 0),
    "schema": ("Describe a {}.", "", 0),
}
SUBJECTS = {
    "chat": ("Write a story about a fox.", "Explain photosynthesis.", "Why is the sky blue?", "What is recursion?"),
    "schema": ("book", "play", "film", "song"),
}
FIELDS = {  # names that take more tokens than what is between them
    "title_of_the_document": {"type": "string", "maxLength": 12},
    "number_of_pages_of_the_first_printed_edition": {"type": "integer", "minimum": 1, "maximum": 999},
    "is_available_in_the_public_library_of_the_town": {"type": "boolean"},
    "can_be_understood_by_children_without_any_help": {"type": "boolean"},
    "was_translated_into_another_language_before_the_war": {"type": "boolean"},
}
SCHEMA = {"type": "object", "properties": FIELDS, "required": list(FIELDS), "additionalProperties": False}
LEAST_GAIN = 0.97  # of any cell; and that of some, by what is drafted and the number of streams
GAINS = {
    ("editing", 1): 2.0,
    ("editing", 8): 1.2,
    ("summary", 1): 1.3,
    ("schema", 1): 1.5,  # more than half of its tokens are forced
}
HEADER = ["drafts", "streams", "without", "with", "gain", "forecast", "drafted", "right", "forced", "tokens", "least"]
OF_1B = {("0.9 right", 1): 3.0}  # where eight rows cost little more than one


@dataclass(slots=True)
class Ran:
    """A run of some requests. All but `outputs` is that of iterations without prompts; a request counts once in each.
    `forced` are guesses that follow from a grammar."""

    outputs: dict[str, list[int]]
    seconds: float = 0.0
    tokens: int = 0
    guesses: int = 0
    right: int = 0
    forced: int = 0
    iterations: int = 0
    requests: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def count(self, iteration: Iteration, result: IterationResult, seconds: float) -> None:
        self.seconds += seconds
        self.iterations += 1
        self.requests += len(iteration.scheduled)
        self.tokens += result.num_tokens
        self.guesses += sum(map(len, iteration.drafts.values()))
        self.right += result.num_tokens - len(result.tokens)


def drafts(bench: Bench) -> PartResult:
    """Tokens per second with drafts, as multiples of those without. Outputs must be equal."""
    rows = list[list[Any]]()
    if not bench.engine.figures.verifies_drafts:
        return PartResult("This engine verifies no drafts.", [])
    cost, ends = CostModel(), frozenset[int]()
    if bench.folder:
        ends = ModelInfo.load(bench.folder, bench.options.cache_dir).eos_token_ids
    cells, ending = list(_cells(bench)), Budget(min(SECONDS, bench.budget.left))
    gains = GAINS | (OF_1B if bench.options.shape == "llama-1b" else {})
    for kind, streams, claims, share in cells:
        seconds = ending.left / (len(cells) - len(rows))
        cell = Cell(bench, claims, streams, cost, ends if share is None else frozenset(), seconds)
        try:
            found = cell.measure(kind, share)
        except TimeoutError:
            break
        rows.append([kind, streams, *found, f"{gains.get((kind, streams), LEAST_GAIN):g}"])
        lines = table(HEADER, rows).splitlines()
        print(*lines[-1 if rows[1:] else 0 :], sep="\n", flush=True)
    text = table(HEADER, rows) + (f"\n\n{CUT}" if len(rows) < len(cells) else "")
    return PartResult(text, [dict(zip(HEADER, row, strict=True)) for row in rows])


def _cells(bench: Bench) -> Iterator[tuple[str, int, list[Claim], float | None]]:
    """What is measured: its name, how many streams, their requests, and the share of guesses that are right; None for
    drafts as they are."""
    prompts = [random.Random(i).choices(range(10, 250), k=PROMPT) for i in range(max(bench.scale.drafted))]
    for streams in bench.scale.drafted:
        for share in SHARES:
            yield f"{share:g} right", streams, [_claim(i, prompts[i]) for i in range(streams)], share
        if bench.folder:
            for kind, claims in _texts(Tokenizer.load(bench.folder), max(streams, 3)):
                yield kind, streams, claims, None


def _claim(i: int, prompt: list[int], **sampling: Any) -> Claim:
    return Claim(str(i), float(i), prompt, [], SamplingParams(ANSWER, temperature=0.0, **sampling), remember=True)


def _texts(tokenizer: Tokenizer, count: int) -> Iterator[tuple[str, list[Claim]]]:
    """So many requests of each kind: with files of this repository, questions, and under a schema."""
    grammar = {"grammar": json.dumps({"grammars": [{"json_schema": SCHEMA}]})}
    for kind, (question, pattern, length) in TEXTS.items():
        files = sorted(ROOT.glob(pattern)) if pattern else []
        long = [text[:length] for file in files if len(text := file.read_text()) > length]
        texts = (long or list(SUBJECTS[kind]))[:count]
        asked = [question.format(text) for text in texts]
        if chat := tokenizer.has_chat_template:
            asked = [tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in asked]
        prompts = [tokenizer.encode(text, add_special_tokens=not chat) for text in asked]
        more = grammar if kind == "schema" else {}
        yield kind, [_claim(i, prompts[i % len(prompts)], **more) for i in range(count)]


class Cell:
    """Requests of which so many run at a time, for about so many seconds, without drafts and with them in turn."""

    def __init__(
        self,
        bench: Bench,
        claims: Sequence[Claim],
        streams: int,
        cost: CostModel,
        ends: Collection[int],
        seconds: float,
    ) -> None:
        self._engine, self._budget = bench.engine, bench.budget
        self._claims, self._streams, self._cost, self._ends = claims, streams, cost, ends
        self._each = seconds / (2 * TURNS + 1) * streams / len(claims)  # of a request; the rest is for prompts
        self._part = Budget(seconds / TURNS)

    def measure(self, kind: str, share: float | None) -> list[Any]:
        first = self._run(0, self._each)
        self._claims = [
            replace(c, sampling=replace(c.sampling, max_new_tokens=len(first.outputs[c.id]))) for c in self._claims
        ]
        answers = {tuple(claim.prompt): first.outputs[claim.id] for claim in self._claims}
        without, given = [first], list[Ran]()
        for turn in range(TURNS):
            if turn and self._part.spent:
                break
            with _scripted(answers, share):
                given.append(self._run(MOST))
            if turn:
                without.append(self._run(0))
        for ran in (*without, *given):
            assert ran.outputs == first.outputs, f"{kind}: drafts changed tokens"
        slow, fast, ran = *(max(ran.rate for ran in runs) for runs in (without, given)), given[-1]
        gains = [f"{slow:.1f}", f"{fast:.1f}", f"{fast / slow:.2f}", f"{self._forecast(ran):.2f}"]
        return [*gains, ran.guesses, ran.right, ran.forced, ran.tokens]

    def _forecast(self, ran: Ran) -> float:
        """The gain by the cost model, if iterations had as many requests and guesses each as these had on average."""
        context = sum(len(claim.prompt) + claim.sampling.max_new_tokens / 2 for claim in self._claims) / len(
            self._claims
        )
        requests, tokens = (n / ran.iterations for n in (ran.requests, ran.requests + ran.guesses))
        plain, drafted = (self._cost.seconds(round(n), round(n * context)) for n in (requests, tokens))
        return ran.tokens / ran.requests * plain / drafted

    def _run(self, most: int, each: float = inf) -> Ran:
        """Run the requests, each of them for so many seconds at most. Their prompts are computed once, and cached.
        Raises TimeoutError if the time of the bench is over."""
        knobs = Knobs(
            max_batch_size=self._streams,
            tbt_target=TARGET,
            stretch_target=True,
            admission="on_demand",
            num_speculative_tokens=most,
            prefix_caching=True,
        )
        engine = self._engine
        scheduler = Scheduler(
            epoch="e",
            figures=engine.figures,
            knobs=knobs,
            eos_token_ids=self._ends,
            cost=self._cost,
            cached_blocks=engine.block_names,
        )
        engine.reset("e")
        scheduler.add(list(self._claims))
        ran, since = Ran({claim.id: [] for claim in self._claims}), dict[str, float]()
        while iteration := scheduler.select():
            if self._budget.spent:
                raise TimeoutError
            entries = {id: scheduler.find(id) for id in iteration.drafts}
            forced = [id for id, e in entries.items() if e and e.drafting and e.drafting.kind == FORCED]
            began = time.perf_counter()
            result = engine.run(iteration)
            scheduler.update(result)
            if not iteration.new and all(count == 1 for count in iteration.scheduled.values()):
                ran.count(iteration, result, time.perf_counter() - began)
                ran.forced += sum(len(iteration.drafts[id]) for id in forced)
            for commit in scheduler.take_commits():
                output = ran.outputs[commit.id]
                output += commit.tokens
                if ran.seconds > since.setdefault(commit.id, ran.seconds) + each and len(output) >= LEAST:
                    scheduler.cancel([commit.id])
        return ran


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
