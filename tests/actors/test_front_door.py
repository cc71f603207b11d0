"""The connection limits of HAProxy and of gateways, which follow from the bound of the pool."""

from __future__ import annotations

import pytest

from actors.app import build
from actors.front_door import (
    FILES_PER_CONNECTION,
    OTHER_FILES,
    connection_limits,
    file_limit_warning,
    max_requests,
)
from actors.haproxy import REFUSED
from services.errors import SettingsError
from services.settings.settings import Settings


@pytest.mark.parametrize("max_waiting", [1, 5000, 10_000])
def test_the_bound_of_the_pool_is_reached_first(max_waiting: int) -> None:
    settings = Settings(max_waiting=max_waiting)
    limits = connection_limits(settings, 1 << 20)
    gateway = build({"redis_url": "redis://nowhere", "max_waiting": max_waiting})._bound_deployment
    assert max_waiting < max_requests(settings) < limits.served == gateway.max_ongoing_requests < limits.maxconn
    assert file_limit_warning(settings, 1 << 20) == ""


def test_engines_that_autoscaling_may_add_count() -> None:
    assert max_requests(Settings(engines=1, max_engines=4)) == max_requests(Settings(engines=4))


def test_open_files_limit_it_and_the_user_is_warned() -> None:
    limits = connection_limits(Settings(), 20_000)
    assert limits.maxconn * FILES_PER_CONNECTION + OTHER_FILES <= 20_000
    text = file_limit_warning(Settings(), 20_000)
    assert f"{limits.served} connections" in text
    enough = int(text.split("ulimit -n ")[1].split("`")[0])
    assert file_limit_warning(Settings(), enough) == ""
    assert file_limit_warning(Settings(), enough - 3) != ""


def test_too_few_open_files_for_one_client_are_an_error() -> None:
    least = OTHER_FILES + FILES_PER_CONNECTION * (REFUSED + 1)
    assert connection_limits(Settings(), least).served == 1
    with pytest.raises(SettingsError, match=f"open files is {least - 1}, at least {least} are needed"):
        connection_limits(Settings(), least - 1)
