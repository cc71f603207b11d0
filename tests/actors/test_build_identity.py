"""The identity of a build: it depends on the sources of an engine's tokens and messages, and on nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import grimp
import pytest

from actors.engine_build import SOURCES, build_of, source_files
from services.settings.settings import Settings

ROOT = Path(__file__).parents[2]


def copy_to(folder: Path) -> Path:
    """A copy of the sources, like that of another installation."""
    for file in source_files(ROOT):
        target = folder / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return copy_to(tmp_path)


def test_two_installations_of_the_same_sources_are_the_same_build(copy: Path) -> None:
    assert build_of(Settings(), copy) == build_of(Settings(), ROOT)


@pytest.mark.parametrize(
    "name",
    [
        "services/engine/__pycache__/engine.cpython-311.pyc",
        "services/engine/backends/cpu/kernels/search.o",
        "services/engine/x~",
    ],
)
def test_files_made_beside_the_sources_change_nothing(copy: Path, name: str) -> None:
    build = build_of(Settings(), copy)
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).write_bytes(b"made")
    assert build_of(Settings(), copy) == build


def test_every_source_counts(copy: Path) -> None:
    builds = {build_of(Settings(), copy)}
    for file in source_files(copy):
        file.write_bytes(file.read_bytes() + b"\n")
        build = build_of(Settings(), copy)
        assert build not in builds, file
        builds.add(build)


def test_another_format_of_keys_and_values_is_another_build() -> None:
    """No scheduler attaches to an engine whose cache has another format."""
    short = Settings(kv_cache_dtype="int8_per_token_head")
    assert build_of(short, ROOT) != build_of(Settings(), ROOT)


def test_the_list_has_everything_that_an_engine_imports() -> None:
    graph = grimp.build_graph("services")
    engine = {module for module in graph.modules if module.startswith(("services.engine", "services.models"))}
    imported = engine.union(*(graph.find_upstream_modules(module) for module in engine))
    known = {file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for file in source_files(ROOT)}
    packages = {name.removesuffix(".__init__") for name in known}
    assert imported - packages == set(), f"add them to SOURCES {SOURCES}"
