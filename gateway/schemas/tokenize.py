"""`POST /tokenize` and `/detokenize`, `GET /tokenizer_info`: their requests and answers, in vLLM's formats."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator, model_validator
from typing_extensions import TypedDict

from gateway.schemas.chat import OPEN, Message
from gateway.schemas.generation import Id, TemplateKwargs
from gateway.schemas.strict import Strict, contradiction, integral
from gateway.schemas.tools import ChatTools, check_tools
from gateway.tools import ToolUse


class TokenizeRequest(Strict):
    """Either a `prompt`, tokenized as for completions, or `messages`, tokenized as for chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)] | None = None
    add_special_tokens: bool | None = None  # by default true for a prompt, false for messages
    add_generation_prompt: bool | None = None  # true by default unless the final message is continued
    continue_final_message: bool | None = None
    tools: ChatTools | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    return_token_strs: bool | None = None
    allow_control_tokens: bool | None = None  # of messages; by default as the server's setting says

    @model_validator(mode="after")
    def _one_of(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise contradiction("prompt", "exactly one of 'prompt' and 'messages' is required")
        if self.continue_final_message and self.add_generation_prompt:
            raise contradiction("continue_final_message", OPEN)
        if self.tools and self.messages is None:
            raise contradiction("tools", "'tools' are only allowed with 'messages'")
        check_tools(self.tool_use)
        return self

    @property
    def tool_use(self) -> ToolUse:
        return ToolUse([tool.tool for tool in self.tools or ()])


def _ids(value: Any, checked: ValidatorFunctionWrapHandler) -> Any:
    """Validate in Python, id by id, so that other threads can run in between; up to the first wrong id."""
    value = integral(value)
    if not isinstance(value, list):
        return checked(value)
    wrong = next((i for i, id in enumerate(value) if type(id) is not int or id < 0), None)
    return value if wrong is None else checked(value[: wrong + 1])


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: Annotated[list[Id], WrapValidator(_ids)]


class Tokens(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(TypedDict):
    prompt: str


class TokenizerInfo(TypedDict):
    """Special tokens have fields of their own (`eos_token`, ...)."""

    tokenizer_class: str
    additional_special_tokens: list[str]
    vocab_size: int
    model_max_length: int
    chat_template: str | None
