"""Fixtures that several rooms use."""

from pathlib import Path

import pytest

from services.config import Settings
from services.models import resolve


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's folder, in the cache of this machine; fetched and converted when it is not there."""
    return resolve("default", Settings().cache_dir)
