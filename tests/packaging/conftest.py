"""The wheel as `pip install .` builds it, from a copy of the tree, without a network."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [name.removesuffix("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
COMPILED = ("__pycache__", "*.pyc")
KERNELS = "services/engine/backends/cpu/prebuilt/avx2-0.so"  # as `make wheel` makes them before it builds the wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the wheel, built by the setuptools of this environment: a build in isolation would download one."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns(*COMPILED))
    (source / KERNELS).parent.mkdir(exist_ok=True)
    (source / KERNELS).write_bytes(b"")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    done = subprocess.run([sys.executable, "-c", BUILD, built], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = built.glob("*.whl")
    return file
