"""Names that are no settings any more, and the numbers that tests set in their place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cli.arguments import parse_serve
from services.errors import UsageError
from services.settings import gone
from services.settings.constants import Constants
from services.settings.gone import GONE
from services.settings.names import PARTS
from services.settings.settings import NAMES, Settings
from services.settings.sources import load

BEFORE = Path(__file__).with_name("settings_before.yaml")
NAMES_BEFORE = yaml.safe_load(BEFORE.read_text())
MOST = 69
# each came with a feature of its own, and counts apart
SINCE = {
    "allow_control_tokens",
    "enable_lora",
    "hf_overrides",
    "lora_dir",
    "lora_modules",
    "max_lora_rank",
    "memory",
    "models",
    "operator_api_key",
    "sleep_idle_seconds",
    "speculative_config",
    "turn_seconds",
}


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process in a folder with the files that `BEFORE` names."""
    gone._warn.cache_clear()
    monkeypatch.chdir(tmp_path)
    for name, text in {"url": "redis://h", "keys": "bob: b"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message.partition(" ")[0] for message in caplog.messages]


def test_a_file_with_all_settings_of_the_release_before_loads(caplog: pytest.LogCaptureFixture) -> None:
    settings = load(BEFORE)
    assert len(NAMES_BEFORE) == 97
    assert sorted(warned(caplog)) == sorted(GONE)
    assert settings.constants == Constants()
    kept = Settings(**{name: value for name, value in NAMES_BEFORE.items() if name in {*NAMES, "revision"}})
    unlike = {name for name in NAMES if getattr(settings, name) != getattr(kept, name)}
    assert unlike <= {"redis_url", "api_keys", "api_keys_file"}  # of the files that it names
    assert settings.model == "some/model@main"
    assert settings.redis_url.get_secret_value() == "redis://h"


def test_no_name_of_the_release_before_is_unknown() -> None:
    assert NAMES_BEFORE.keys() <= {*NAMES, *PARTS, *GONE}
    assert not GONE.keys() & {*NAMES, *PARTS}
    assert {*NAMES} >= SINCE
    assert len({*NAMES} - SINCE) <= MOST


def test_each_name_is_warned_of_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_GRACE", "not a number")
    load(BEFORE, grace=3)
    load(BEFORE)
    assert warned(caplog).count("grace") == 1


@pytest.mark.parametrize("name", GONE)
def test_a_name_is_accepted_from_flag_variable_and_file(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    flag = f"--{name.replace('_', '-')}"
    value = NAMES_BEFORE[name]
    words = {bool: [flag], list: [flag, "GET", "POST"]}.get(GONE[name].kind, [flag, str(value)])
    parse_serve([*words, "--port", "1"])
    assert warned(caplog) == [name]
    assert GONE[name].instead in caplog.messages[0]

    gone._warn.cache_clear()
    monkeypatch.setenv(f"ORCA_{name.upper()}", str(value))
    parse_serve(["model"])
    assert warned(caplog) == [name, name]
    monkeypatch.delenv(f"ORCA_{name.upper()}")

    gone._warn.cache_clear()
    (tmp_path / "orca.toml").write_text(f'{name.replace("_", "-")} = "{value}"')
    parse_serve([])
    assert warned(caplog) == [name, name, name]


@pytest.mark.parametrize("name", GONE)
def test_a_warning_names_settings_that_exist(name: str) -> None:
    words = {word.strip(".,;:=") for word in GONE[name].instead.split()}
    named = {word for word in words if "_" in word and "=" not in word}
    assert named <= {*NAMES, "max_tokens", "max_new_tokens"}


def test_a_name_that_is_gone_is_not_suggested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as flag:
        parse_serve(["--keep-endd", "3"])
    monkeypatch.setenv("ORCA_KEEP_ENDD", "3")
    with pytest.raises(UsageError) as variable:
        load()
    monkeypatch.delenv("ORCA_KEEP_ENDD")
    (tmp_path / "orca.toml").write_text("keep_endd = 3")
    with pytest.raises(UsageError) as file:
        load()
    assert not [text for text in map(str, (flag.value, variable.value, file.value)) if "ended" in text.lower()]


def test_constants_come_from_their_variable_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORCA_CONSTANTS", '{"lease": 3}')
    settings = load()
    assert settings.constants == Constants(lease=3.0)
    assert load(**settings.without_secrets()) == settings  # as a child process gets them
    (tmp_path / "orca.toml").write_text("constants = {lease = 4}")
    with pytest.raises(UsageError, match="unknown setting 'constants'"):
        load()
    with pytest.raises(UsageError, match="unknown flag --constants"):
        parse_serve(["--constants", "{}"])
