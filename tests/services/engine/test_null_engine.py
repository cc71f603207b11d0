"""The engine without a model keeps the same promises and needs no torch."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from driver import Driver, Job

from services.engine.null import NullEngine
from services.errors import StaleEpoch
from services.messages import EngineFigures, Iteration
from services.requests import SamplingParams

FIGURES = EngineFigures("null", 256, 256, 4, 200, "null")


def jobs() -> list[Job]:
    rng = random.Random(2)
    return [
        Job(f"n{i}/0", [1] * rng.randint(1, 30), SamplingParams(max_new_tokens=rng.randint(1, 20))) for i in range(10)
    ]


def test_tokens_depend_on_request_and_position_alone() -> None:
    expected = [Driver(NullEngine(FIGURES)).run([job])[0].output for job in jobs()]
    for seed in range(3):
        assert [job.output for job in Driver(NullEngine(FIGURES), random.Random(seed)).run(jobs())] == expected
    assert all(50 <= token < 150 for output in expected for token in output)
    assert len({tuple(output) for output in expected}) == len(expected)


def test_an_iteration_takes_at_least_the_time_that_is_set() -> None:
    engine = NullEngine(FIGURES, iteration=0.05)
    engine.reset("1:a")
    assert engine.run(Iteration("1:a", 0, {})).elapsed >= 0.05


def test_as_many_log_probabilities_as_asked_for() -> None:
    """For each token, and for the prompt with the first one, once, in any chunks."""
    asked = SamplingParams(3, logprobs=2, prompt_logprobs=1)
    for rng in (None, random.Random(1), random.Random(2)):
        plain, job = Job("a/0", [1] * 9, SamplingParams(3)), Job("b/0", [1] * 9, asked)
        Driver(NullEngine(FIGURES), rng).run([plain, job])
        assert plain.logprobs == []
        assert [len(one.top) for one in job.logprobs] == [2, 2, 2]
        first, *others = (one.prompt for one in job.logprobs)
        assert first is not None
        assert [len(part) for part in (first.tokens, first.ranks, first.top_ids, first.top_logprobs)] == [8] * 4
        assert others == [None, None]


def test_another_epoch_is_refused() -> None:
    engine = NullEngine(FIGURES)
    engine.reset("a")
    with pytest.raises(StaleEpoch):
        engine.run(Iteration("b", 1, {}))


def test_neither_it_nor_the_settings_import_torch() -> None:
    code = "import sys, services.engine.null, services.engine.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
