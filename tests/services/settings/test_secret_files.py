"""API keys and the pool's URL in files: what is kept, precedence, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.errors import UsageError
from services.settings.sources import load
from services.settings.types import digest_of, hash_of

URL = "redis://orca:hidden-word@pool.example:6380/0"


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_lines_of_tenants_and_keys(tmp_path: Path) -> None:
    hashed = digest_of("third")
    (tmp_path / "keys").write_text(f"# ours\n\nalice: first\nalice:sk-a:b#c\n  bob : {hashed}  \n")
    settings = load(api_keys_file="keys", api_key="own")
    expected = {hash_of("own"): "default", hash_of("first"): "alice", hash_of("sk-a:b#c"): "alice", hashed: "bob"}
    assert settings.tenants == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alice hidden-word", "keys, line 1: is not 'tenant: key'"),
        ("a: x\nalice: 'hidden-word'", "keys, line 2: is not 'tenant: key'"),
        ("alice: hidden word", "keys, line 1: is not 'tenant: key'"),
        ("alice: [hidden-word]", "keys, line 1: is not 'tenant: key'"),
        ('{"alice": "hidden-word"}', "keys, line 1: is not 'tenant: key'"),
        ("alice: sha256:hidden-word", "keys, line 1: a key that begins with 'sha256:' is a hash"),
        ("alice: hidden-word\nbob: hidden-word", "keys, line 2: one key for the tenants 'alice' and 'bob'"),
        ("# nobody", "keys: holds no key"),
    ],
)
def test_errors_in_a_file_of_keys_do_not_repeat_it(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(UsageError) as raised:
        load(api_keys_file="keys")
    assert f"api_keys_file: {said}" in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_a_key_of_two_tenants_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice: k")
    with pytest.raises(UsageError, match="one key for the tenants 'alice' and 'bob'"):
        load(api_keys_file="keys", api_keys={"k": "bob"})


@pytest.mark.parametrize(
    ("name", "text", "mode", "warned"),
    [
        ("api_keys_file", f"bob: {digest_of('x')}\nalice: hidden-word", 0o644, True),
        ("api_keys_file", "alice: hidden-word", 0o640, False),
        ("api_keys_file", f"bob: {digest_of('x')}", 0o644, False),
        ("redis_url", URL, 0o604, True),
        ("redis_url", URL, 0o600, False),
    ],
)
def test_a_file_that_everybody_can_read_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, text: str, mode: int, warned: bool
) -> None:
    (tmp_path / "secret").write_text(text)
    (tmp_path / "secret").chmod(mode)
    load(**{name: "secret"})
    expected = f"{name}: secret: every user of this machine can read this file (mode {mode:o}); use mode 600"
    assert caplog.messages == [expected] * warned


@pytest.mark.parametrize("name", ["api_keys_file", "redis_url"])
def test_an_unreadable_file_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: none: No such file"):
        load(**{name: "none"})


def test_the_pool_s_url_is_read_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(URL + "\n")
    settings = load(redis_url="url")
    assert settings.redis_url.get_secret_value() == URL
    shown = [repr(settings), str(settings.model_dump(mode="json")), str(settings.with_key_hashes())]
    assert not [text for text in shown if "hidden-word" in text]


def test_the_file_of_the_url_is_accepted_by_its_former_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "url").write_text(URL)
    monkeypatch.setenv("ORCA_REDIS_URL", "redis://other")
    assert load(redis_url_file="url").redis_url.get_secret_value() == URL
    monkeypatch.setenv("ORCA_REDIS_URL", "")
    monkeypatch.setenv("ORCA_REDIS_URL_FILE", "url")
    assert load().redis_url.get_secret_value() == URL
    assert load(redis_url="redis://third").redis_url.get_secret_value() == "redis://third"
    (tmp_path / "orca.toml").write_text("redis_url_file = 'url'\n")
    monkeypatch.delenv("ORCA_REDIS_URL_FILE")
    monkeypatch.delenv("ORCA_REDIS_URL")
    assert load().redis_url.get_secret_value() == URL
    with pytest.raises(UsageError, match="redis_url, redis_url_file: name one"):
        load(redis_url="redis://third", redis_url_file="url")


@pytest.mark.parametrize("text", ["h:6379", "alice: hidden-word"])
def test_a_file_without_a_url_is_named_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "url").write_text(text)
    with pytest.raises(UsageError, match=r"^redis_url: url: holds no URL") as raised:
        load(redis_url="url")
    assert text not in str(raised.value)


def test_the_name_of_the_file_may_have_any_characters(tmp_path: Path) -> None:
    (tmp_path / "me@work").write_text(URL)
    assert load(redis_url="me@work").redis_url.get_secret_value() == URL


def test_a_url_without_its_scheme_is_not_repeated() -> None:
    with pytest.raises(UsageError, match="redis_url: is no URL") as raised:
        load(redis_url=":hidden-word@h:6379")
    assert "hidden-word" not in str(raised.value)


@pytest.mark.parametrize("url", ["http://h", "redis://:hidden/word@h:6379", "redis://h:hidden"])
def test_an_error_in_the_url_does_not_repeat_it(url: str) -> None:
    with pytest.raises(UsageError, match="redis_url: is not 'redis://'") as raised:
        load(redis_url=url)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("as_list", [True, False])
def test_the_operator_s_key_may_be_in_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture, as_list: bool) -> None:
    file = tmp_path / "operator"
    file.write_text("hidden-word\n")
    file.chmod(0o644)
    given = [str(file)] if as_list else str(file)
    settings = load(operator_api_key=given)
    assert settings.operator_api_key == (digest_of("hidden-word"),)
    assert load(**settings.with_key_hashes()).operator_api_key == settings.operator_api_key
    assert load(**settings.without_secrets()).operator_api_key == ()
    assert "hidden-word" not in repr(settings)
    assert [message for message in caplog.messages if "use mode 600" in message]
    file.write_text("hidden word")
    with pytest.raises(UsageError, match=r"operator_api_key: .*operator: holds not one key") as raised:
        load(operator_api_key=given)
    assert "hidden" not in str(raised.value)


def test_an_operator_s_key_that_is_taken_for_a_file_is_not_repeated() -> None:
    with pytest.raises(UsageError, match=r"operator_api_key: .*no file that is there") as raised:
        load(operator_api_key="/hidden")
    assert "hidden" not in str(raised.value)


def test_the_operator_s_key_is_no_tenant_s() -> None:
    with pytest.raises(UsageError, match="operator_api_key is the key of a tenant too"):
        load(operator_api_key="k", api_keys={"k": "alice"})


def test_keys_are_kept_as_hashes_and_schedulers_get_none() -> None:
    settings = load(api_key=["one-key", digest_of("other-key")])
    assert settings.tenants == {digest_of("one-key"): "default", digest_of("other-key"): "default"}
    assert "one-key" not in repr(settings)
    assert load(**settings.with_key_hashes()).tenants == settings.tenants
    assert load(**settings.without_secrets()).tenants == {}
