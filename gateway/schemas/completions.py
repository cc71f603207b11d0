"""`POST /v1/completions`: its request and its answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import TypedDict

from gateway.schemas.answers import FinishReason, ScoredPrompt, Usage
from gateway.schemas.generation import NOT_IN_STREAMS, GenerationFields, Id
from gateway.schemas.strict import contradiction, integral, no_options, only
from gateway.schemas.structured import Constraint, ResponseFormat


def token_prompts(value: Any) -> list[str | list[int]]:
    """OpenAI's four formats as a list with a text or token ids per prompt."""
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
    prompt: Annotated[list[Any], BeforeValidator(token_prompts, Prompts)]  # of str | list[int]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None  # OpenAI's maximum is 5, vLLM's 20
    add_special_tokens: bool | None = None  # true by default
    echo: bool | None = None
    max_tokens: Id | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None  # vLLM's field
    chat_template_kwargs: Annotated[None, BeforeValidator(no_options)] = None
    reasoning: Annotated[None, BeforeValidator(no_options)] = None
    suffix: Annotated[None, only("")] = None

    @model_validator(mode="after")
    def _prompt_logprobs(self) -> CompletionRequest:
        if self.prompt_logprobs is not None and self.stream:
            raise contradiction("prompt_logprobs", NOT_IN_STREAMS)
        return self

    @property
    def format_constraint(self) -> Constraint | None:
        return self.response_format.constraint("response_format") if self.response_format else None

    @property
    def requested_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def requested_prompt_logprobs(self) -> int | None:
        return self.prompt_logprobs

    @property
    def echoes(self) -> bool:
        return bool(self.echo)


class CompletionLogprobs(TypedDict):
    """The first token of an echoed prompt has nulls, because it has no context."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None  # vLLM's fields
    token_ids: list[int] | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: ScoredPrompt | None


class Completion(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunkChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: NotRequired[str | int | None]  # in the last chunk of the choice
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class CompletionChunk(TypedDict):
    """The data of an event; the last event of a stream has the data `[DONE]`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    usage: NotRequired[Usage | None]
