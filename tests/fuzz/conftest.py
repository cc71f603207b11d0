"""A served gateway on a real pool for random requests, and how many of them a run sends.

`make test` tries some dozens of each kind, the same ones each time; `make fuzz` thousands, others each time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "gateway"))
from stack import Server, Stack
from tiny_text import make_folder

from services.settings.constants import Constants
from services.settings.settings import Settings


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    configured = Settings(
        files_dir=str(tmp_path_factory.mktemp("files")),
        override_generation_config={"max_new_tokens": 40},
        constants=Constants(max_body_bytes=100_000),
    )
    folder = make_folder(tmp_path_factory.mktemp("tiny"))
    with (
        Server(tmp_path_factory.mktemp("pool")) as server,
        Stack(server.url, "fuzz", folder, configured) as stack,
    ):
        yield stack


@pytest.fixture(scope="session")
def http(served: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=20) as client:
        yield client


@pytest.fixture(autouse=True)
def goes_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """After whatever a test sent, the server answers the next request."""
    yield
    if "http" in request.fixturenames:
        body: dict[str, Any] = {"prompt": "hi", "max_tokens": 2}
        answer = request.getfixturevalue("http").post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text


def pytest_report_header() -> str:
    return f"fuzz: {settings.default.max_examples} examples where a test says 100"
