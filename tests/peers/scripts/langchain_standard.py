"""LangChain's standard tests of chat models, for its classes of chat completions, responses and messages."""

import os
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_steps
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

URL, MODEL = os.environ["ORCA_URL"], os.environ["ORCA_MODEL"]
COMMON = {"model": MODEL, "api_key": "none", "temperature": 0, "max_tokens": 200, "max_retries": 0, "timeout": 120}
# a small model ends the texts of these tests within max_tokens only if it does not repeat itself
WITH_PENALTY = ("test_structured_output", "test_bind_runnables_as_tools")
PENALTY = {"extra_body": {"repetition_penalty": 1.2}}


class _Standard(ChatModelIntegrationTests):
    """What all share: the model takes neither images nor audio."""

    supports_image_inputs = False
    has_tool_choice = True
    penalty: ClassVar[dict[str, Any]] = PENALTY

    @pytest.fixture
    def model(self, request: pytest.FixtureRequest) -> BaseChatModel:
        penalty = self.penalty if request.node.name.startswith(WITH_PENALTY) else {}
        of_test = getattr(request, "param", None) or {}
        return self.chat_model_class(**self.standard_chat_model_params | self.chat_model_params | penalty | of_test)


class TestChatCompletions(_Standard):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return COMMON | {"base_url": f"{URL}/v1", "stream_usage": True}


class TestResponses(TestChatCompletions):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return super().chat_model_params | {"use_responses_api": True}


class TestMessages(_Standard):
    penalty: ClassVar[dict[str, Any]] = {"model_kwargs": PENALTY}

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return COMMON | {"base_url": URL}


if __name__ == "__main__":
    options = ("--asyncio-mode=auto", "-o", "asyncio_default_test_loop_scope=session")
    pytest_steps.run(Path(__file__).parent, Path(__file__).name, *options)
