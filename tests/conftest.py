"""Fixtures and hooks for all tests."""

import contextlib
import gc
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from services.engine.backends.cpu.build import NoKernels, compiled
from services.files import user_cache
from services.models import resolve

# deadlines and health checks would make tests fail on slow machines
settings.register_profile("orca", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("orca"), max_examples=10)  # of `make test-fast`
settings.register_profile("fuzz", settings.get_profile("orca"), max_examples=5000)  # of `make fuzz`
settings.load_profile("orca")

NICENESS = 5

gc.disable()  # until all tests are collected: what is imported for them stays


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m gpu`, files without such a test are not even imported: a machine with a GPU may lack what they need."""
    if config.option.markexpr == "gpu" and collection_path.name.startswith("test_"):
        return True if "mark.gpu" not in collection_path.read_text() else None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start a server come first, as they take longest; then files that take long, so that no process is left
    alone with one at the end."""
    items.sort(key=lambda item: ("cluster" not in item.keywords, "long" not in item.keywords))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that start no server have a lower priority than those that do."""
    if "cluster" not in item.keywords:
        os.nice(max(0, NICENESS - os.nice(0)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from servers_together import ServersTogether

    return ServersTogether(config, log)


@pytest.fixture(scope="session", autouse=True)
def kernels(request: pytest.FixtureRequest) -> None:
    """Compile the CPU's kernels before any test, as a test may time out while it waits for the compiler. Tests of a GPU
    alone do without."""
    if any("gpu" not in item.keywords for item in request.session.items):
        with contextlib.suppress(NoKernels):
            compiled(user_cache())


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The folder of the default model in this machine's cache; downloaded and converted if it is not there."""
    return resolve("default", user_cache())
