"""The environment of child processes has no settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors.cluster.environment import prepared_environment
from services.child_environment import least, without_settings
from services.engine.backends.cpu import build
from services.engine.settings import EngineSettings
from services.engine.startup.proof.verdict import run_trial
from services.settings.settings import Settings

SAYS = "import json, os, sys; print(json.dumps(dict(os.environ)))"


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_API_KEY", "a-word")
    monkeypatch.setenv("HF_TOKEN", "another")


def test_settings_are_left_out() -> None:
    assert "ORCA_API_KEY" not in without_settings()
    assert without_settings()["HF_TOKEN"] == "another"
    assert not {"ORCA_API_KEY", "HF_TOKEN"} & set(least())
    assert least("HF_TOKEN")["HF_TOKEN"] == "another"


def test_the_compiler_gets_no_settings() -> None:
    told = json.loads(build._output_of([sys.executable, "-c", SAYS]))
    assert (told.get("ORCA_API_KEY"), told["HF_TOKEN"]) == (None, "another")


def test_the_trial_of_kernels_gets_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "says_secrets.py").write_text("import os; raise SystemExit(os.environ.get('ORCA_API_KEY', 'nothing'))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run_trial(tmp_path, EngineSettings(), "says_secrets").fault.endswith("nothing")


def test_a_python_child_imports_nothing_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json.py", "services.py", "secrets.py"):
        (tmp_path / name).write_text("raise RuntimeError('mine')")
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}relative")
    command = [sys.executable, "-m", "services.models.converter", "absent.gguf", "target"]
    done = subprocess.run(command, cwd=tmp_path, env=without_settings(), capture_output=True, text=True)
    assert "mine" not in done.stderr
    assert done.returncode == 1


def test_a_python_child_keeps_what_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "compiled.py").touch()
    environment = without_settings()
    environment |= {"PYTHONPATH": f"{tmp_path}{os.pathsep}{environment['PYTHONPATH']}"}
    subprocess.run([sys.executable, "-c", "import compiled"], env=environment, check=True)
    assert list((tmp_path / "__pycache__").glob("compiled.*.pyc"))


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_children_ask_this_machine_without_a_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv(name, "intranet.example, 10.0.0.0/8")
    for told in (without_settings()["no_proxy"], without_settings()["NO_PROXY"]):
        assert told.split(",") == ["intranet.example", "10.0.0.0/8", "localhost", "127.0.0.1", "::1"]


def test_rays_variables_of_the_user_are_not_for_our_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_REDIS_ADDRESS", "127.0.0.1:9")
    monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", "no.such")
    environment, guard = prepared_environment(tmp_path, Settings(), 1000)
    guard.close()
    assert not {"RAY_REDIS_ADDRESS", "RAY_RUNTIME_ENV_HOOK"} & set(environment)
