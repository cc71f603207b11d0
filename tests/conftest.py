"""Fixtures that several rooms use."""

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from services.engine.native.build import NoKernels, compiled
from services.files import user_cache
from services.models import resolve

settings.register_profile("orca", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # no clock is a judge
settings.register_profile("fuzz", settings.get_profile("orca"), max_examples=5000)  # of `make fuzz`
settings.load_profile("orca")

NICENESS = 5


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts a server comes first: it takes longest."""
    items.sort(key=lambda item: "cluster" not in item.keywords)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Who starts no server leaves the cores to who does."""
    if "cluster" not in item.keywords:
        os.nice(max(0, NICENESS - os.nice(0)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from servers_together import ServersTogether

    return ServersTogether(config, log)


@pytest.fixture(scope="session", autouse=True)
def kernels() -> None:
    """The engine's kernels are there before any test: none waits for the compiler within its own patience."""
    with contextlib.suppress(NoKernels):
        compiled(user_cache())


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's folder, in the cache of this machine; fetched and converted when it is not there."""
    return resolve("default", user_cache())
