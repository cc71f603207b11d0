"""Machines that cannot compile the kernels run transformers' own layers."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.engine.backends.cpu import build
from services.engine.backends.cpu.build import TARGETS, NoKernels, compiled, kernels, prebuild
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.errors import SettingsError
from services.files import user_cache

SETTINGS = EngineSettings("cpu", "float32", block_size=4, kv_blocks=64, threads=1)


def test_without_a_compiler_the_stock_path_runs(
    tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = replace(SETTINGS, cache_dir=tmp_path / "cache")
    engine = Engine.load(tiny_model("llama"), settings)
    assert engine.figures.numerics.endswith(" float32 cpu sdpa fallback")
    assert "there is no g++" in caplog.text
    with pytest.raises(SettingsError, match="weights=int8 is served on the fast path only"):
        Engine.load(tiny_model("llama"), replace(settings, weights="int8"))


def compile_by(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a compiler that runs the script."""
    compiler = folder / "broken"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(build, "COMPILER", "broken")


def test_the_compilers_error_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_by('[ "$1" = --version ] || { echo "no such flag" >&2; exit 1; }', tmp_path, monkeypatch)
    told: list[str] = []
    with pytest.raises(NoKernels, match="no such flag"):
        compiled(tmp_path / "cache", told.append)
    assert told == ["compiling the engine's kernels for this processor, once"]
    assert list((tmp_path / "cache").rglob("*.so")) == []


def test_a_long_compilation_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler ends only when it was said that it still runs."""
    said, told = tmp_path / "said", list[str]()
    wait = f"while [ ! -e {said} ]; do sleep 0.01; done"
    compile_by(f'for last; do :; done; [ "$1" = --version ] || {{ {wait}; touch "$last"; }}', tmp_path, monkeypatch)
    monkeypatch.setattr(build, "EVERY", 0.01)

    def tell(line: str) -> None:
        told.append(line)
        if line.endswith("s passed"):
            said.touch()

    assert compiled(tmp_path / "cache", tell).exists()
    assert "compiling the engine's kernels: 0 s passed" in told


def test_a_compiler_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_by('echo "no license" >&2; exit 1', tmp_path, monkeypatch)
    with pytest.raises(NoKernels, match="no license"):
        compiled(tmp_path / "cache")


def test_each_source_has_a_library_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_by('for last; do :; done; [ "$1" = --version ] || touch "$last"', tmp_path, monkeypatch)
    sources = [tmp_path / name for name in ("one", "same", "other")]
    for source, text in zip(sources, ("a", "a", "b"), strict=True):
        source.mkdir()
        (source / "kernels.cpp").write_text(text)
    one, same, other = (compiled(tmp_path / "cache", source=source) for source in sources)
    assert one == same != other
    assert one.exists()
    assert other.exists()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the sets of instructions are x86-64's")
def test_the_fastest_library_that_was_compiled_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, other, ahead = (tmp_path / name for name in ("source", "other", "ahead"))
    for folder, text in ((source, "int one() { return 1; }"), (other, "int two() { return 2; }")):
        folder.mkdir()
        (folder / "kernels.cpp").write_text(text)
    prebuild(["avx512", "avx2"], source, ahead)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "PREBUILT", ahead)

    def chosen(features: str, source: Path = source) -> str:
        monkeypatch.setattr(build, "_features", lambda: f"flags : fpu {features}")
        return compiled(tmp_path / "cache", source=source).name.rsplit("-", 1)[0]

    assert chosen(TARGETS["amx"][1]) == "avx512"
    assert chosen(TARGETS["avx512"][1]) == "avx512"
    assert chosen(TARGETS["avx512"][1].replace("avx512bw", "")) == "avx2"
    with pytest.raises(NoKernels, match="no library compiled ahead for this processor"):
        chosen("sse2")
    with pytest.raises(NoKernels, match="no library compiled ahead"):
        chosen(TARGETS["amx"][1], other)
    with pytest.raises(NoKernels, match="no such sets of instructions: avx; there are amx"):
        prebuild(["avx", "avx2"], source, ahead)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoKernels, match="cannot be kept"):
        kernels(tmp_path / "file")


def test_what_is_compiled_once_is_found_again() -> None:
    told: list[str] = []
    kernels(user_cache())
    assert compiled(user_cache(), told.append).exists()
    assert told == []
