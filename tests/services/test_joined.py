"""What a server compares before it joins others on one pool."""

from __future__ import annotations

from typing import Any

import pytest

from services.errors import SettingsError
from services.joined import compared, described
from services.settings.settings import Settings
from services.text import TextTables

TABLES = TextTables([b"a", b"bc"], frozenset())


def server(port: int = 8000, tables: TextTables = TABLES, **settings: Any) -> str:
    return described(Settings(port=port, **settings), tables)


def test_differences_are_named_and_what_belongs_to_a_machine_is_not() -> None:
    (line,) = compared(server(max_model_len=128, cache_dir="/x"), [server(8001, block_size=32)] * 2)
    assert ":8001 serves the same pool with other settings: " in line
    assert line.endswith("block_size=32 (here default), max_model_len=default (here 128)")
    assert compared(server(), [server(8001)]) == []


def test_no_keys_beside_keys() -> None:
    keyed = server(8001, api_key=("secret",))
    assert "secret" not in keyed
    with pytest.raises(SettingsError, match="8001 serves the same pool and requires API keys"):
        compared(server(), [keyed])
    (line,) = compared(keyed, [server()])  # a pool without keys may be upgraded to keys
    assert "no API keys (here they are required)" in line
    assert compared(keyed, [server(8002, api_key=("another",))]) == []
    assert compared(server(8001), [keyed]) == []  # the same server, which was killed and starts without keys
    assert compared(server(), [server(), keyed]) == []  # a gateway of it that died after another one brought keys


@pytest.mark.parametrize("other", [[b"a", b"bd"], [b"ab", b"c"], [b"a", b"bc", b"d"]])
def test_another_vocabulary_is_refused(other: list[bytes]) -> None:
    with pytest.raises(SettingsError, match="another vocabulary"):
        compared(server(), [server(8001, TextTables(other, frozenset()))])
