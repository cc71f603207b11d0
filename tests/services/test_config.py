"""Settings: flag, variable and file name the same things; what is wrong is named."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from services.config import load, parse
from services.errors import SettingsError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCA_PORT", raising=False)


def test_a_flag_wins_over_a_variable_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "orca.toml").write_text("port = 1001\nmax_batch_size = 7\n")
    assert load().port == 1001
    monkeypatch.setenv("ORCA_PORT", "1002")
    assert load().port == 1002
    settings = parse(["--port", "1003"], "orca serve")
    assert (settings.port, settings.max_batch_size) == (1003, 7)


def test_unknown_settings_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="unknown setting: prot"):
        load(prot=1)
    monkeypatch.setenv("ORCA_PROT", "1")
    with pytest.raises(SettingsError, match="ORCA_PROT"):
        load()
    monkeypatch.delenv("ORCA_PROT")
    (tmp_path / "orca.toml").write_text("prot = 1\n")
    with pytest.raises(SettingsError, match="prot"):
        load()


def test_an_unknown_flag_ends_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["--prot", "1"], "orca serve")
    assert "--prot" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"port": 70_000}, "port"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"device": "tpu"}, "device"),
        ({"order": "lifo"}, "order"),
        ({"ageing": -1}, "ageing"),
        ({"ttft_target": 0}, "ttft_target"),
        ({"earliest_class": 1}, "earliest_class"),
        ({"lease": "soon"}, "lease"),
        ({"pool": "a b"}, "pool"),
        ({"redis_url": "redis://h", "durability": "strict"}, "durability"),
        ({"device": "cpu", "dtype": "float16"}, "dtype"),
        ({"tp": 2, "lookahead": 1}, "lookahead=1.*tp=2, pp=1"),
        ({"tp": 2, "null_engine": True}, "null engine.*tp=2"),
        ({"share_prefixes": True, "prefix_caching": False}, "share_prefixes=True.*prefix_caching=False"),
    ],
)
def test_wrong_and_contradictory_settings_are_named(flags: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load(**flags)


def test_the_docs_that_are_made_from_the_code_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert made["settings"]() == (ROOT / "docs" / "settings.md").read_text()
    assert made["architecture"]() == (ROOT / "docs" / "architecture.md").read_text(), "run: python docs/generate.py"
