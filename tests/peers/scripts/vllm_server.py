"""vLLM's tests of its server over HTTP, sent to the server that runs.

`tests.utils` of the suite imports vLLM and starts its server. A module of that name with its `RemoteOpenAIServer`
takes its place: it has the same clients, and starts nothing. Files that need vLLM itself are not run.
"""

import json
import sys
import types
from typing import Any

import anthropic
import httpx
import openai
import pytest_steps

FILES = (
    "anthropic/test_messages.py",
    "openai/chat_completion/test_chat_completion.py",
    "openai/chat_completion/test_completion_with_function_calling.py",
    "openai/chat_completion/test_enable_force_include_usage.py",
    "openai/chat_completion/test_include_reasoning.py",
    "openai/chat_completion/test_root_path.py",
    "openai/models/test_models.py",
    "openai/test_chunked_prompt.py",
    "serve/instrumentator/test_orca_metrics.py",
    "serve/middleware/test_optional_middleware.py",
)


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
        return openai.OpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, timeout=120, **more)

    def get_async_client(self, **more: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, timeout=120, **more)

    def get_client_anthropic(self, **more: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url_root, api_key="none", max_retries=0, **more)

    def get_async_client_anthropic(self, **more: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.url_root, api_key="none", max_retries=0, **more)


_request = httpx.Request.__init__


def _named(self: httpx.Request, *words: Any, **more: Any) -> None:
    """The suite's names of models stand for the model that is served."""
    body = json.loads(more["content"]) if isinstance(more.get("content"), bytes) else more.get("json")
    if isinstance(body, dict) and "model" in body:
        more["content"], more["json"] = None, body | {"model": pytest_steps.MODEL}
    _request(self, *words, **more)


if __name__ == "__main__":
    httpx.Request.__init__ = _named  # type: ignore[method-assign]
    utils = types.ModuleType("tests.utils")
    utils.RemoteOpenAIServer = RemoteOpenAIServer  # type: ignore[attr-defined]
    utils.ROCM_EXTRA_ARGS = []  # type: ignore[attr-defined]
    sys.modules["tests.utils"] = utils
    files = [f"tests/entrypoints/{file}" for file in FILES]
    pytest_steps.run(
        pytest_steps.SUITE, *files, "--noconftest", "--continue-on-collection-errors", "--asyncio-mode=auto"
    )
