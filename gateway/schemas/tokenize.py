"""`POST /tokenize` and `/detokenize`, vLLM's shapes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator, model_validator

from gateway.schemas.chat import OPEN, Message
from gateway.schemas.generation import Id
from gateway.schemas.strict import Strict, contradiction, integral, only


class TokenizeRequest(Strict):
    """Either a `prompt`, tokenized as completions do it, or `messages`, as chat does."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)] | None = None
    add_special_tokens: bool | None = None  # true for a prompt, false for messages, unless said
    add_generation_prompt: bool | None = None  # true unless said, or the last message is continued
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[None, only({})] = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_of(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise contradiction("prompt", "exactly one of 'prompt' and 'messages' is required")
        if self.continue_final_message and self.add_generation_prompt:
            raise contradiction("continue_final_message", OPEN)
        return self


def _ids(value: Any, checked: ValidatorFunctionWrapHandler) -> Any:
    """One step for each id, so that the gateway's loop can go on in between; up to the first that is wrong."""
    value = integral(value)
    if not isinstance(value, list):
        return checked(value)
    wrong = next((i for i, id in enumerate(value) if type(id) is not int or id < 0), None)
    return value if wrong is None else checked(value[: wrong + 1])


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: Annotated[list[Id], WrapValidator(_ids)]
