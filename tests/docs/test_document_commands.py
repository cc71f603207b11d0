"""The commands and tests that the documents name exist."""

from __future__ import annotations

import re
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from load.bench.__main__ import PARTS as BENCH
from load.evaluation.parts import known
from load.simulation.__main__ import PARTS as SIMULATION

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    path for name in ("*.md", "docs/**/*.md", "deploy/**/*.md", "docs/numbers.toml") for path in ROOT.glob(name)
]
MODULE = re.compile(r"\bpython3? -m ([\w.]+)")
PART = re.compile(r"\bload\.(bench|evaluation|simulation)((?: --part [a-z]\w+)+)")
TEST = re.compile(r"\btest_\w+\.py\b")
MAKE = re.compile(r"(?:^|[`\"])make ([a-z][\w-]*)", re.MULTILINE)


def texts(pattern: re.Pattern[str]) -> list[tuple[str, Any]]:
    """What `pattern` finds, with the document that has it."""
    named = ((document.relative_to(ROOT).as_posix(), document.read_text()) for document in DOCUMENTS)
    return sorted(set(chain.from_iterable(((name, found) for found in pattern.findall(text)) for name, text in named)))


def runs(module: str) -> bool:
    """Whether `python -m MODULE` finds something to run."""
    try:
        spec = find_spec(module)
        return spec is not None and (not spec.submodule_search_locations or find_spec(f"{module}.__main__") is not None)
    except ModuleNotFoundError:
        return False


def test_the_modules_that_are_run_exist() -> None:
    named = texts(MODULE)
    assert len(named) > 10
    assert [(document, module) for document, module in named if not runs(module)] == []


def test_the_parts_that_are_named_exist() -> None:
    parts = {"bench": BENCH.keys(), "evaluation": known().keys(), "simulation": SIMULATION.keys()}
    named = [(program, part) for _, (program, found) in texts(PART) for part in found.replace("--part", "").split()]
    assert named
    assert [(program, part) for program, part in named if part not in parts[program]] == []


def test_the_files_of_tests_exist() -> None:
    files = {file.name for file in (ROOT / "tests").rglob("test_*.py")}
    named = texts(TEST)
    assert len(named) > 10
    assert [(document, file) for document, file in named if file not in files] == []


def test_the_targets_of_make_exist() -> None:
    rules = re.findall(r"^([a-z][\w -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    named = texts(MAKE)
    assert len(named) > 10
    assert [(document, target) for document, target in named if target not in targets] == []
