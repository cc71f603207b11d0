"""llama.cpp's and vLLM's tests of their servers over HTTP, sent to the server that runs.

llama.cpp's can use one that is there already. For vLLM's, a class with the clients of its `RemoteOpenAIServer` takes
the place of the one that starts a server, and what tests import of vLLM itself is a mock.
"""

import importlib.abc
import importlib.machinery
import json
import os
import re
import sys
import types
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import urlsplit

import anthropic
import httpx
import httpx2
import openai
import pytest
import pytest_steps
import requests
from transformers import AutoTokenizer

OF_OPENAI = re.compile(r"(:\d+)/(chat/completions|models|responses)\b")  # llama.cpp's have no /v1
MOCKED = ("vllm.", "tests.utils.", "torch.", "fastapi.", "pybase64.")

_ask = requests.Session.request


def _served(body: Any) -> Any:
    """The body with the model that is served in place of the suite's."""
    return body | {"model": pytest_steps.MODEL} if isinstance(body, dict) and "model" in body else body


def _by_httpx(request: Callable[..., None]) -> Callable[..., None]:
    def made(self: object, *words: Any, **more: Any) -> None:
        if isinstance(more.get("content"), bytes):
            more |= {"json": json.loads(more["content"]), "content": None}
        request(self, *words, **more | {"json": _served(more.get("json"))})

    return made


def _by_requests(self: requests.Session, method: str, url: str, **more: Any) -> requests.Response:
    """A test that sends something to a route that is not there is skipped: it would pass if it expects an error."""
    more |= {"json": _served(more.get("json")), "timeout": more.get("timeout") or 120}
    response = _ask(self, method, OF_OPENAI.sub(r"\1/v1/\2", url), **more)
    if response.status_code == 404 and '"not_found"' in response.text:
        pytest.skip(f"{method.upper()} {urlsplit(url).path} is not served")
    return response


class RemoteOpenAIServer:
    """The server that runs, whatever model and flags a test asks for."""

    DUMMY_API_KEY = "none"
    url_root = pytest_steps.URL

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> "RemoteOpenAIServer":
        return self

    def __exit__(self, *_: object) -> None: ...

    def url_for(self, *parts: str) -> str:
        return "/".join((self.url_root, *parts))

    def get_client(self, **more: Any) -> openai.OpenAI:
        return openai.OpenAI(**{"base_url": self.url_for("v1"), "api_key": "none", "max_retries": 0} | more)

    def get_async_client(self, **more: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**{"base_url": self.url_for("v1"), "api_key": "none", "max_retries": 0} | more)

    def get_client_anthropic(self, **more: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url_root, api_key="none", max_retries=0, **more)

    def get_async_client_anthropic(self, **more: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.url_root, api_key="none", max_retries=0, **more)


class _Mocks(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """What vLLM's tests import and have no need of. The tokenizer of any model is that of the model that is served."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if f"{name}.".startswith(MOCKED) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        folder = os.environ["ORCA_MODEL_FOLDER"]
        given = {"RemoteOpenAIServer": RemoteOpenAIServer, "ROCM_EXTRA_ARGS": []}
        return MagicMock(**given, get_tokenizer=lambda *_, **__: AutoTokenizer.from_pretrained(folder))

    def exec_module(self, module: types.ModuleType) -> None: ...


if __name__ == "__main__":
    for library in (httpx, httpx2):
        library.Request.__init__ = _by_httpx(library.Request.__init__)  # type: ignore[method-assign]
    requests.Session.request = _by_requests  # type: ignore[method-assign]
    llama_cpp = pytest_steps.SUITE / "tools/server/tests"
    if llama_cpp.exists():
        os.environ |= {"DEBUG_EXTERNAL": "1", "PORT": str(urlsplit(pytest_steps.URL).port)}
        pytest_steps.run(llama_cpp, "unit")
    else:
        sys.meta_path.insert(0, _Mocks())
        folder = "tests/entrypoints"
        options = (f"--confcutdir={folder}", "--continue-on-collection-errors", "--asyncio-mode=auto")
        pytest_steps.run(pytest_steps.SUITE, folder, *options)
