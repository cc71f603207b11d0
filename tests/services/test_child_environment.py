"""The environment of child processes has no settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from services.child_environment import least, without_settings
from services.engine.backends.cpu import build
from services.engine.settings import EngineSettings
from services.engine.startup.proof.verdict import run_trial

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
