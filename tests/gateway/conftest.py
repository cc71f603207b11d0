"""A served gateway on a real pool, for the tests of this folder."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import openai
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from allowed_texts import Grammar
from stack import Server, Stack
from tiny_text import make_folder
from waiting import wait_until

from gateway.model import ServedModel
from services.models import ModelInfo
from services.pool.pool import RequestPool
from services.settings.constants import Constants
from services.settings.settings import Settings
from services.text import Tokenizer


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def model(tiny_folder: Path) -> ServedModel:
    return ServedModel("tiny", Tokenizer.load(tiny_folder), ModelInfo.load(tiny_folder), 1)


@pytest.fixture(scope="session")
def tokenizer(tiny_folder: Path) -> Tokenizer:
    return Tokenizer.load(tiny_folder)


@pytest.fixture(scope="module")
def grammar(model: ServedModel) -> Grammar:
    return Grammar(model)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(tmp_path_factory.mktemp("pool")) as server:
        yield server.url


@pytest.fixture(scope="session")
def stack(redis_url: str, tiny_folder: Path) -> Iterator[Stack]:
    with Stack(
        redis_url,
        "served",
        tiny_folder,
        Settings(override_generation_config={"max_new_tokens": 40}, constants=Constants(max_body_bytes=100_000)),
    ) as stack:
        # a gateway that has just started has not read the pool yet
        wait_until(lambda: httpx.get(f"{stack.url}/health").is_success)
        yield stack


@pytest.fixture(scope="module")  # a module can have a `stack` of its own
def http(stack: Stack) -> httpx.Client:
    return stack.http


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stack.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def other(stack: Stack) -> Iterator[httpx.Client]:
    """A second gateway on the same pool."""
    with stack.second() as gateway:
        yield gateway.http


@pytest.fixture
async def pool(redis_url: str) -> AsyncIterator[RequestPool]:
    """An empty pool for one test."""
    pool = RequestPool(redis_url, f"own-{secrets.token_hex(4)}")
    await pool.connect()
    yield pool
    await pool.close()


@pytest.fixture(scope="module")
def served(redis_url: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = Settings(
        files_dir=str(tmp_path_factory.mktemp("files")),
        api_keys={"key-of-alice": "alice", "key-of-bob": "bob"},
        constants=Constants(max_file_bytes=300_000, max_batch_lines=500, max_body_bytes=100_000, lines_in_flight=16),
    )
    with Stack(redis_url, f"batches-{secrets.token_hex(4)}", tiny_folder, settings) as stack:
        yield stack


@pytest.fixture(scope="module")
def alice(served: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url + "/v1", api_key="key-of-alice", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def bob(served: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url + "/v1", api_key="key-of-bob", max_retries=0) as client:
        yield client
