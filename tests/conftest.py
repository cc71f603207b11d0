"""Fixtures that several rooms use."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from services.config import Settings
from services.engine.native.build import NoKernels, compiled
from services.models import resolve

settings.register_profile("orca", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # no clock is a judge
settings.load_profile("orca")


@pytest.fixture(scope="session", autouse=True)
def kernels() -> None:
    """The engine's kernels are there before any test: none waits for the compiler within its own patience."""
    with contextlib.suppress(NoKernels):
        compiled(Settings().cache_dir)


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's folder, in the cache of this machine; fetched and converted when it is not there."""
    return resolve("default", Settings().cache_dir)
