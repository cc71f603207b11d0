"""Types that several answers share, and those of the server's own routes.

Types of answers are only for the document: the routes write these objects without them.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

ServiceTier = Literal["default", "priority", "flex"]
FinishReason = Literal["stop", "length"]


class ErrorObject(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(TypedDict):
    error: ErrorObject


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprob]
    refusal: None


class PromptLogprob(TypedDict):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # for each token of the prompt, by token id


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int


class Usage(TypedDict):
    """`continuous_usage_stats` has no details."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[PromptTokensDetails]
    completion_tokens_details: NotRequired[CompletionTokensDetails]  # of models that reason


class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str  # from here on vLLM's fields
    parent: None
    max_model_len: int
    default_sampling_params: NotRequired[dict[str, float]]  # for fields that a request leaves out
    weights: NotRequired[str]  # how the engines keep them
    type: Literal["model"]  # from here on Anthropic's fields
    display_name: str
    created_at: str
    lifecycle: Literal["active"]


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[Model]
    has_more: bool  # from here on Anthropic's fields
    first_id: str
    last_id: str


class Load(TypedDict):
    server_load: int


class Version(TypedDict):
    version: str
    model: str
    revision: str
    numerics: Any
