"""A Docker daemon with the images, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.containers import images
from tests.containers.daemon import Daemon, running


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    with running() as daemon:
        print(images.prepare(daemon))
        yield daemon
