"""LangChain's standard tests of chat models, for its classes of chat completions, responses and messages."""

import os
from pathlib import Path
from typing import Any

import pytest_steps
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

URL, MODEL = os.environ["ORCA_URL"], os.environ["ORCA_MODEL"]


class _Standard(ChatModelIntegrationTests):
    """What all share: the model takes neither images nor audio."""

    supports_image_inputs = False
    has_tool_choice = True


class TestChatCompletions(_Standard):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        common = {"model": MODEL, "base_url": f"{URL}/v1", "api_key": "none", "temperature": 0, "max_tokens": 200}
        return common | {"stream_usage": True, "max_retries": 0, "timeout": 120}


class TestResponses(TestChatCompletions):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return super().chat_model_params | {"use_responses_api": True}


class TestMessages(_Standard):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        common = {"model": MODEL, "base_url": URL, "api_key": "none", "temperature": 0, "max_tokens": 200}
        return common | {"max_retries": 0, "timeout": 120}


if __name__ == "__main__":
    file = Path(__file__)
    pytest_steps.run(file.parent, file.name, "--asyncio-mode=auto", "-o", "asyncio_default_test_loop_scope=session")
