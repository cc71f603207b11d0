"""The Dockerfile names files that the tree has. The image is not built here: there is no Docker engine."""

from __future__ import annotations

import re
import subprocess
import tomllib

from tests.deploy.conftest import ROOT

LINES = re.sub(r"\\\n", " ", (ROOT / "deploy/Dockerfile").read_text()).splitlines()
COPIED = [source for line in LINES if line.startswith("COPY ") for source in line.split()[1:-1]]


def test_what_is_copied_exists_and_is_let_through() -> None:
    ignored = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    for source in COPIED:
        assert (ROOT / source).exists(), source
        assert f"!{source.split('/')[0]}" in ignored


def test_all_packages_are_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.removesuffix("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert packages <= set(COPIED)


def test_the_deployer_is_a_shell_script_that_parses() -> None:
    script = ROOT / "deploy/keep_deployed.sh"
    assert script.stat().st_mode & 0o111
    subprocess.run(["sh", "-n", script], check=True)
