"""The bounds of the front door, of gateways and of the pool, from one number."""

from __future__ import annotations

import pytest

from actors.app import build
from actors.connections import FILES_EACH, OTHER_FILES, connections, streams, warning
from actors.haproxy import REFUSED
from services.errors import SettingsError
from services.settings.settings import Settings


@pytest.mark.parametrize("max_waiting", [1, 5000, 10_000])
def test_the_pools_bound_is_met_first(max_waiting: int) -> None:
    settings = Settings(max_waiting=max_waiting)
    has = connections(settings, 1 << 20)
    gateway = build({"redis_url": "redis://nowhere", "max_waiting": max_waiting})._bound_deployment
    assert max_waiting < streams(settings) < has.served == gateway.max_ongoing_requests < has.most
    assert warning(settings, 1 << 20) == ""


def test_open_files_bound_it_and_the_user_is_told() -> None:
    has = connections(Settings(), 20_000)
    assert has.most * FILES_EACH + OTHER_FILES <= 20_000
    text = warning(Settings(), 20_000)
    assert f"{has.served} connections" in text
    enough = int(text.split("ulimit -n ")[1].split("`")[0])
    assert warning(Settings(), enough) == ""
    assert warning(Settings(), enough - 3) != ""


def test_too_few_for_anybody_is_an_error_at_the_start() -> None:
    least = OTHER_FILES + FILES_EACH * (REFUSED + 1)
    assert connections(Settings(), least).served == 1
    with pytest.raises(SettingsError, match=f"open files is {least - 1}, at least {least} are needed"):
        connections(Settings(), least - 1)
