"""Types that several answers share, and those of the server's own routes.

Answers are built as these types, which are their only description: mypy compares what is built with them, and the
OpenAPI document is made of them. What a stream writes for each token is assembled as bytes, which tests compare.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, NotRequired, TypeVar

from typing_extensions import TypedDict

ServiceTier = Literal["default", "priority", "flex"]
FinishReason = Literal["stop", "length"]
ChatFinishReason = FinishReason | Literal["tool_calls"]


class Identified(TypedDict):
    id: str


T = TypeVar("T", bound=Identified)


class Listing(TypedDict):
    object: Literal["list"]
    first_id: str
    last_id: str
    has_more: bool


class Page(Listing, Generic[T]):
    data: list[T]


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


ScoredPrompt = list[dict[str, PromptLogprob] | None]  # for each token of the prompt, by token id


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


class ModelDetails(TypedDict):
    default_sampling_params: NotRequired[dict[str, float]]  # for fields that a request leaves out
    weights: NotRequired[str]  # how the engines keep them
    status: NotRequired[str]  # ready; asleep, cold, off: it wakes up; loading: no engine is ready; failed; leaving
    failure: NotRequired[str]  # why no engine could load it
    tenants: NotRequired[list[str]]  # of an adapter, for the operator: who can name it; none: everybody


class Model(ModelDetails):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str  # from here on vLLM's fields
    parent: str | None  # of an adapter: its model
    max_model_len: int
    type: Literal["model"]  # from here on Anthropic's fields
    display_name: str
    created_at: str
    lifecycle: Literal["active"]


class ModelList(Listing):
    data: list[Model]


class Load(TypedDict):
    server_load: int


class Version(TypedDict):
    version: str
    model: str
    revision: str
    numerics: Any
