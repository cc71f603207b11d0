"""Tokens with grammars are those of transformers' logits and a matcher's masks, on every backend, with every number of
ranks, and after preemptions, crashes and iterations that were sent ahead."""

from __future__ import annotations

import random
from collections import deque
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from driver import Driver, Job
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rank_processes import RankProcesses
from tiny_models import make_tiny_model
from transformers import AutoModelForCausalLM

from services.engine.batch.grammars import load_grammars
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.grammar import Grammars
from services.messages import Claim, Iteration
from services.models.info import ModelInfo
from services.requests import SamplingParams
from services.scheduling import Knobs, Scheduler
from services.text import TextTables

VOCAB, EOS = 320, 319
NEW_TOKENS = 24
GRAMMARS = [
    'start: %json {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["the quick", "fox"]}}, '
    '"required": ["a", "b"], "additionalProperties": false, "x-guidance": {"whitespace_flexible": false}}',
    "start: /[a-f]{3,40}( [0-9]{2})*/",
    'start: "what is" (" the" | " a") /[a-z ]{2,9}/',
    'start: x+\nx: "(" x ")" | /[a-c]/',
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("grammars"), vocab_size=VOCAB)


@pytest.fixture(scope="module")
def grammars(folder: Path) -> Grammars:
    return load_grammars(folder, ModelInfo.load(folder))


def prompt(i: int) -> list[int]:
    return [3 + (7 * i + 5 * j) % 250 for j in range(4 + 3 * i)]


def jobs(**more: float) -> list[Job]:
    return [
        Job(f"r{i}/0", prompt(i), SamplingParams(NEW_TOKENS, grammar=grammar, **{"temperature": 0.0, **more}))
        for i, grammar in enumerate(GRAMMARS)
    ]


def until_end(output: list[int]) -> list[int]:
    """Without the tokens after EOS, which were drawn ahead."""
    return output[: output.index(EOS) + 1] if EOS in output else output


@pytest.fixture(scope="module")
def reference(folder: Path, grammars: Grammars) -> list[list[int]]:
    """Greedy tokens of the stock model, one request at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    outputs = []
    for i, grammar in enumerate(GRAMMARS):
        matcher, output = grammars.matcher(grammar), list[int]()
        while len(output) < NEW_TOKENS and not matcher.ended:
            with torch.inference_mode():
                logits = model(torch.tensor([prompt(i) + output])).logits[0, -1]
            bits = np.unpackbits(np.frombuffer(matcher.mask(), np.uint8), bitorder="little", count=VOCAB)
            output.append(int(logits.masked_fill(torch.from_numpy(bits == 0), -torch.inf).argmax()))
            matcher.consume(output[-1:])
        outputs.append(output)
    return outputs


@pytest.mark.parametrize("fast_path", [True, False], ids=["native", "stock"])
def test_greedy_tokens_are_those_of_the_stock_model(folder: Path, reference: list[list[int]], fast_path: bool) -> None:
    """Together, and in random batches and chunks."""
    options = EngineSettings("cpu", "float32", fast_path=fast_path, block_size=4, kv_blocks=200, threads=1)
    engine = Engine.load(folder, options)
    for rng in (None, random.Random(1)):
        assert [until_end(job.output) for job in Driver(engine, rng).run(jobs())] == reference
    assert any(output[-1] == EOS for output in reference)
    assert any(output[-1] != EOS for output in reference)


def test_the_rank_that_samples_follows_the_grammar(folder: Path, reference: list[list[int]]) -> None:
    options = EngineSettings("cpu", "float32", block_size=4, kv_blocks=200, threads=1, tp=2, pp=2)
    with RankProcesses(folder, options) as ranks:
        assert [until_end(job.output) for job in Driver(ranks, random.Random(1)).run(jobs())] == reference


# --- the real scheduler --------------------------------------------------------------------------------------


Outputs = dict[str, list[int]]  # by id


@cache
def small_engine(folder: Path) -> Engine:
    """One whose blocks do not suffice for all requests."""
    return Engine.load(folder, EngineSettings("cpu", "float32", block_size=4, kv_blocks=14, threads=1))


def claims(outputs: Outputs) -> list[Claim]:
    """Two choices of each grammar, drawn; one grammar has a stop string."""
    made = []
    for i, grammar in enumerate(GRAMMARS):
        for choice in range(2):
            sampling = SamplingParams(
                NEW_TOKENS, seed=i, choice=choice, grammar=grammar, stop=("ff",) if i == 1 else ()
            )
            id = f"r{i}/{choice}"
            made.append(Claim(id, float(i), prompt(i), list(outputs[id]), sampling))
    return made


def serve(
    engine: Engine, tables: TextTables, knobs: Knobs, crashes: frozenset[int]
) -> tuple[dict[str, list[int]], int]:
    """The outputs of all claims, and how often a request was preempted. Scheduler and engine start again from what is
    committed before the iterations `crashes`."""
    outputs: Outputs = {f"r{i}/{choice}": [] for i in range(len(GRAMMARS)) for choice in range(2)}
    ended: set[str] = set()
    step = preempted = 0
    while len(ended) < len(outputs):
        epoch = f"e{step}"
        engine.reset(epoch)
        scheduler = Scheduler(epoch=epoch, figures=engine.figures, knobs=knobs, eos_token_ids=[EOS], text=tables)
        scheduler.add([claim for claim in claims(outputs) if claim.id not in ended])
        known: set[str] = set()
        sent: deque[Iteration] = deque()
        while len(ended) < len(outputs):
            while iteration := scheduler.select():
                preempted += sum(new.id in known for new in iteration.new)
                known.update(new.id for new in iteration.new)
                sent.append(iteration)
            step += 1
            if step in crashes:
                break
            result = engine.run(sent.popleft())
            assert not result.failed
            scheduler.update(result)
            for commit in scheduler.take_commits():
                outputs[commit.id] += commit.tokens
                if commit.end is not None:
                    ended.add(commit.id)
    return outputs, preempted


@pytest.fixture(scope="module")
def calm(folder: Path) -> Outputs:
    outputs, preempted = serve(small_engine(folder), TextTables.load(folder), Knobs(max_batch_size=1), frozenset())
    assert not preempted
    assert len({tuple(output) for output in outputs.values()}) > len(GRAMMARS)  # the choices differ
    return outputs


def test_outputs_are_texts_of_their_grammars(calm: Outputs, grammars: Grammars) -> None:
    ends = set()
    for i, grammar in enumerate(GRAMMARS):
        for choice in range(2):
            matcher = grammars.matcher(grammar)
            matcher.consume(calm[f"r{i}/{choice}"])
            ends.add(matcher.ended)
    assert ends == {True, False}
    assert any(output[-1] != EOS and len(output) < NEW_TOKENS for output in calm.values()), "a stop string ends one"


@settings(max_examples=6, deadline=None)
@example(crashes=frozenset(), lookahead=1, budget=None)
@given(
    crashes=st.frozensets(st.integers(1, 60), max_size=6),
    lookahead=st.integers(0, 1),
    budget=st.sampled_from([None, 9]),
)
def test_tokens_survive_preemptions_chunks_crashes_and_lookahead(
    folder: Path, calm: Outputs, crashes: frozenset[int], lookahead: int, budget: int | None
) -> None:
    """A token that was drawn past an EOS or a stop string harms nothing."""
    knobs = Knobs(8, token_budget=budget, admission="on_demand", lookahead=lookahead)
    outputs, preempted = serve(small_engine(folder), TextTables.load(folder), knobs, crashes)
    assert outputs == calm
    assert preempted or crashes or budget
