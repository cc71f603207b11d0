"""`POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from gateway.schemas.generation import NOT_IN_STREAMS, GenerationFields, Id
from gateway.schemas.strict import contradiction, integral, only


def _prompts(value: Any) -> list[str | list[int]]:
    """One entry per prompt, a text or token ids: OpenAI's four shapes are one list past here."""
    value = integral(value)
    if isinstance(value, str):
        prompts: list[Any] = [value]
    elif isinstance(value, list) and value and all(type(v) is int for v in value):
        prompts = [value]
    elif isinstance(value, list):
        prompts = value
    else:
        raise ValueError("must be a string, a list of strings, a list of token ids or a list of those")
    if not prompts:
        raise ValueError("is empty")
    for prompt in prompts:
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(type(v) is int for v in prompt)):
            raise ValueError("must be a string, a list of strings, a list of token ids or a list of those")
        if not prompt:
            raise ValueError("has an empty prompt")
    return prompts


Prompts = str | list[int] | list[str | list[int]]


class CompletionRequest(GenerationFields):
    prompt: Annotated[list[Any], BeforeValidator(_prompts, Prompts)]  # of str | list[int]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None  # OpenAI has 5 at most, vLLM 20
    add_special_tokens: bool | None = None  # true unless said
    echo: bool | None = None
    max_tokens: Id | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    suffix: Annotated[None, only("")] = None

    @model_validator(mode="after")
    def _prompt_logprobs(self) -> CompletionRequest:
        if self.prompt_logprobs is not None and self.stream:
            raise contradiction("prompt_logprobs", NOT_IN_STREAMS)
        return self

    @property
    def asked_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def asked_prompt_logprobs(self) -> int | None:
        return self.prompt_logprobs

    @property
    def echoes(self) -> bool:
        return bool(self.echo)
