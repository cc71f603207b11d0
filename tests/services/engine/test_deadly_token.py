"""The injected fault kills the whole process, and only when its token is to be computed."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driver import Driver, Job

from services.engine.engine import Engine
from services.engine.null import NullEngine
from services.engine.settings import EngineSettings
from services.requests import SamplingParams


def load(kind: Any, folder: Path, deadly: int = -1) -> Any:
    settings = EngineSettings(device="cpu", dtype="float32", block_size=4, kv_blocks=64, threads=1, deadly_token=deadly)
    return kind.load(folder, settings)


def job(new: int, prompt: tuple[int, ...] = (5, 6, 7)) -> Job:
    return Job("a/0", list(prompt), SamplingParams(new, temperature=0.0, ignore_eos=True))


def drawn_first(kind: Any, folder: Path) -> int:
    (done,) = Driver(load(kind, folder)).run([job(1)])
    return done.output[0]


def run(kind: Any, folder: Path, deadly: int, jobs: list[Job], survived: Path) -> None:
    """Runs jobs one after another on an engine that this token kills, and counts those that finish."""
    engine = load(kind, folder, deadly)
    for count, each in enumerate(jobs, 1):
        Driver(engine).run([each])
        survived.write_text(str(count))


@pytest.mark.parametrize("kind", [Engine, NullEngine])
def test_it_dies_of_its_token_in_a_prompt_or_drawn_but_not_before_it_is_computed(
    kind: type[Engine] | type[NullEngine], tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    processes = multiprocessing.get_context("forkserver")  # which imports torch once for all of them
    processes.set_forkserver_preload(["services.engine.engine", "services.engine.preload"])
    folder = tiny_model("llama")
    token = drawn_first(kind, folder)
    for last in (job(2), job(1, prompt=(5, token))):
        survived = tmp_path / "survived"
        args = (kind, folder, token, [job(1), last], survived)
        process = processes.Process(target=run, args=args)
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
        assert survived.read_text() == "1"
