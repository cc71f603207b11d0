"""The benchmarks of the scheduler's settings run, and fail if a setting changes a token."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_tiny_model

from load.bench.parts import chunking, defaults, lookahead, preemption, prefix, priorities
from load.in_process import Engine
from load.options import Options, load_exact_engine
from load.stock import oracle
from load.trace import Answer, Request, Run
from load.workloads import any_prompt
from services.engine.null import NullEngine
from services.engine.startup import huge_pages
from services.messages import EngineFigures, Iteration, IterationResult

Oracle = Callable[[Request], list[int]]
PROMPTS = [any_prompt(16, seed) for seed in range(6)]

# a part, a size for a model of 256 positions, rows of its table
PARTS: dict[str, tuple[Any, Any, int]] = {
    "chunking": (chunking, chunking.Size(2, 24, 150, 4, (64, 16), 1), 4),
    "priorities": (priorities, priorities.Size(2, 4, 2, 16, 12, 4, 3, 2), 3),
    "preemption": (preemption, preemption.Size(6, 120, (4, 40, 20), 12, 1), 2),
    "prefix": (prefix, prefix.Size(64, 20, 12, 5, 3, 3, 2, 3, 1), 6),
    "lookahead": (lookahead, lookahead.Size((1, 4), 12, 12, 1), 4),
}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    return Options(str(make_tiny_model(tmp_path_factory.mktemp("tiny"))), "cpu")


@pytest.fixture(scope="module")
def engine(options: Options) -> Engine:
    return load_exact_engine(options)


@pytest.fixture(scope="module")
def check(options: Options) -> Oracle:
    return oracle(options)


def report_of(part: Any, engine: Engine, check: Oracle | None, size: Any) -> str:
    takes_prompts = part in (preemption, lookahead)
    report: str = part.report(engine, check, size, *([PROMPTS] if takes_prompts else []))
    return report


@pytest.mark.skipif(not huge_pages.available(), reason="shared memory has no huge pages here")
def test_the_engine_has_the_memory_of_a_served_one(options: Options) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    cache = load_exact_engine(options)._cache.keys[0]
    assert len(os.listdir("/proc/self/fd")) == descriptors
    mappings = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    (mapped,) = [" ".join(line) for line in mappings if _contains(line[0], cache.data_ptr())]
    assert "orca-engine" in mapped


def _contains(place: str, address: int) -> bool:
    first, end = (int(each, 16) for each in place.split("-"))
    return first <= address < end


@pytest.mark.parametrize("name", PARTS)
def test_a_part_runs_and_all_its_variants_give_the_tokens_of_generate(engine: Engine, check: Oracle, name: str) -> None:
    part, size, variants = PARTS[name]
    report = report_of(part, engine, check, size)
    rows = [line for line in report.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + variants
    assert "generate()" in report


def test_all_settings_give_the_tokens_of_generate_on_the_loads_of_the_defaults(engine: Engine, check: Oracle) -> None:
    size = defaults.Size(2, 12, 150, 2, 0.005, preemption.Size(4, 60, (4, 20), 8, 1), 2, 40, 8, 4, 1)
    loads = defaults.loads(engine, size, PROMPTS)
    chats = {name: loads[name] for name in ("a long prompt", "short answers", "a system prompt")}
    variants = {name: defaults.VARIANTS[name] for name in ("paper", "default")} | {"small chunks": {"tbt_target": 1e-4}}
    report = defaults.report(engine, check, size, chats, variants)
    assert len([line for line in report.splitlines() if line.startswith("| ")]) == 2 + len(chats) * len(variants)
    assert report.count("2 of 2 checked equal `generate()`") == len(chats)


class Fickle(NullEngine):
    """An engine whose tokens differ in every run."""

    runs = 0

    def reset(self, epoch: str) -> None:
        super().reset(epoch)
        self.runs += 1

    def run(self, iteration: Iteration) -> IterationResult:
        result = super().run(iteration)
        return replace(result, tokens={id: token + self.runs for id, token in result.tokens.items()})


@pytest.mark.parametrize("name", PARTS)
def test_a_part_fails_if_a_setting_changes_tokens(name: str) -> None:
    part, size, _ = PARTS[name]
    engine = Fickle(EngineFigures("m", 256, 512, 16, 1000, "null"))
    with pytest.raises(AssertionError, match="are equal over variants"):
        report_of(part, engine, None, size)


def test_a_part_fails_if_generate_gives_other_tokens(engine: Engine, check: Oracle) -> None:
    part, size, _ = PARTS["prefix"]
    with pytest.raises(AssertionError, match="generate\\(\\) gives"):
        part.report(engine, lambda request: [*check(request)[:-1], 0], size)


def test_streams_that_end_before_the_prompt_comes_have_no_time_between_tokens() -> None:
    stream, prompt = (Answer(Request([5], 2), arrived, [1, 2], [arrived + 1, arrived + 2]) for arrived in (0.0, 7.0))
    assert chunking.cells([Run([stream, prompt], [], {})])[:4] == ["-", "-", "-", "0"]


# modules that a machine with a GPU may lack
BARE = """
import importlib, sys
missing = "ray redis pydantic pydantic_settings orjson fastapi aiohttp locust"
sys.modules.update(dict.fromkeys(missing.split()))
"""


def run_bare(code: str) -> None:
    subprocess.run([sys.executable, "-c", BARE + code], check=True, cwd=Path(__file__).parents[3])


def test_the_benches_need_no_server_and_no_gateway(options: Options) -> None:
    run_bare(f"""
from load.bench import __main__ as bench
from load.bench.engine import __main__ as engine_bench
from load.bench.gpu import __main__ as gpu_bench
from load.bench import kernels_in_turn
from load.options import Options, load_exact_engine
for name in {list(PARTS)}:
    importlib.import_module("load.bench.parts." + name)
load_exact_engine(Options({options.model!r}, "cpu"))
""")


def test_the_tests_of_a_gpu_need_none_either() -> None:
    run_bare("""
import os, pytest
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
sys.exit(pytest.main(["-p", "no:cacheprovider", "-q", "--collect-only", "-m", "gpu", "tests/services/engine"]))
""")
