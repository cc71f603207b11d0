"""The Dockerfile names files that the tree has, and stages of its own. No image is built here: that takes minutes."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from services.engine.backends.cpu.build import TARGETS
from tests.deploy.conftest import ROOT

LINES = re.sub(r"\\\n", " ", (ROOT / "deploy/Dockerfile").read_text()).splitlines()
COPIES = [line.split()[1:-1] for line in LINES if line.startswith("COPY ")]
COPIED = [source for words in COPIES if not words[0].startswith("--from=") for source in words]


def test_what_is_copied_exists_and_is_let_through() -> None:
    ignored = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    for source in COPIED:
        assert (ROOT / source).exists(), source
        assert f"!{source.split('/')[0]}" in ignored


def test_stages_are_declared_before_they_are_named() -> None:
    declared = set[str]()
    for line in LINES:
        if line.startswith("FROM "):
            image, *name = line.removeprefix("FROM ").split(" AS ")
            assert image in declared or ":" in image, line
            declared.update(name)
        if stage := re.search(r"\bfrom=(\w+)", line):
            assert stage[1] in declared, line


def test_all_sets_of_instructions_are_compiled_for() -> None:
    (named,) = [line.split('"')[1] for line in LINES if line.startswith("ARG KERNELS=")]
    assert named.split() == list(TARGETS)


def test_files_of_the_hub_are_in_the_volume_of_the_cache() -> None:
    """The user's home is read-only in all containers, and the cache links to files of the hub."""
    words = [word for line in LINES if line.startswith("ENV ") for word in line.split() if "=" in word]
    variables = dict(word.split("=", 1) for word in words)
    assert Path(variables["HF_HOME"]).is_relative_to(variables["ORCA_CACHE_DIR"])


def test_all_packages_are_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.removesuffix("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert packages <= set(COPIED)


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_a_linter_has_no_remarks() -> None:
    done = subprocess.run(["hadolint", "deploy/Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_deployer_is_a_shell_script_that_parses() -> None:
    script = ROOT / "deploy/keep_deployed.sh"
    assert script.stat().st_mode & 0o111
    subprocess.run(["sh", "-n", script], check=True)
