"""The fields that the requests of all generating routes share: sampling, stopping, streaming, order, reasoning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.schemas.strict import Strict, contradiction, no_options, only
from gateway.schemas.structured import ConstraintFields
from gateway.tools import NO_TOOLS, ToolUse
from services.models.generation import SamplingDefaults
from services.requests import SamplingParams

MAX_KWARGS = 32
MAX_KWARGS_BYTES = 16_384
# variables and functions that a template has from elsewhere
RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
    | {"raise_exception", "strftime_now"}
)

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]


def _template_kwargs(value: dict[str, Any]) -> dict[str, Any]:
    for name in value:
        if name in RESERVED or name.endswith("_token") or not name.isidentifier():
            raise ValueError(f"has {name[:64]!r}, which is not a variable that a request can set")
    if len(written := orjson.dumps(value)) > MAX_KWARGS_BYTES:
        raise ValueError(f"has {len(written)} bytes as JSON, at most {MAX_KWARGS_BYTES} are accepted")
    return value


TemplateKwargs = Annotated[dict[str, Any], Field(max_length=MAX_KWARGS), AfterValidator(_template_kwargs)]


class Reasoning(Strict):
    """Responses' options of reasoning. `summary` has no effect."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # the older name


class ThinkingConfig(Strict):
    """Anthropic's `thinking`. `adaptive` leaves it to the model, as does a request without it."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None  # a summary is what the model wrote

    @property
    def variables(self) -> dict[str, Any]:
        """The variables of the chat template that it sets."""
        return {} if self.type == "adaptive" else {"enable_thinking": self.type == "enabled"}


def template_variables(
    kwargs: dict[str, Any] | None, effort: Effort | None, verbosity: Verbosity | None = None
) -> dict[str, Any]:
    """The variables that a request gives to the chat template. As in vLLM, an effort is one of them, and it sets
    `enable_thinking` unless `kwargs` do."""
    implied = {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    told = {} if verbosity is None else {"verbosity": verbosity}
    return implied | told | (kwargs or {})


MAX_STOPS = 16
MAX_STOP_BYTES = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_BYTES = 256
MAX_ALLOWED_TOKEN_IDS = 16_384
MAX_SALT = 1024  # characters
NOT_IN_STREAMS = "'prompt_logprobs' are not available when 'stream' is true"
LAST_CLASS = 8  # the first is -8
TIER_CLASSES = {"default": 0, "flex": 1, "priority": -1, "fast": -1}  # `auto` implies no class

NO_DEFAULTS = SamplingDefaults()

Count = Annotated[int, Field(ge=1)]
Id = Annotated[int, Field(ge=0)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Stops = Annotated[list[str], Field(max_length=MAX_STOPS)]


def stop_strings(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or not all(isinstance(s, str) for s in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"has {len(stops)} strings, at most {MAX_STOPS} are accepted")
    for stop in stops:
        if not 1 <= len(stop.encode()) <= MAX_STOP_BYTES:
            raise ValueError(f"a stop string has {len(stop.encode())} bytes, it must have 1 to {MAX_STOP_BYTES}")
    return tuple(stops)


def _logit_bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("must be an object of token id to bias")
    if len(value) > MAX_LOGIT_BIAS:
        raise ValueError(f"has {len(value)} entries, at most {MAX_LOGIT_BIAS} are accepted")
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise ValueError(f"{token!r:.60} is not a token id")
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise ValueError(f"the bias of token {token} must be a number from -100 to 100 (got {bias!r:.60})")
    return {int(token): float(bias) for token, bias in value.items()}


def _bad_words(value: Any) -> tuple[str, ...]:
    words = [] if value is None else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("must be a list of strings")
    if len(words) > MAX_BAD_WORDS:
        raise ValueError(f"has {len(words)} strings, at most {MAX_BAD_WORDS} are accepted")
    for word in words:
        if not 1 <= len(word.encode()) <= MAX_BAD_WORD_BYTES:
            raise ValueError(f"a word has {len(word.encode())} bytes, it must have 1 to {MAX_BAD_WORD_BYTES}")
    return tuple(dict.fromkeys(words))


def truncation(value: int) -> int:
    if value < -1 or value == 0:
        raise ValueError("must be at least 1, or -1 for the most that leaves room for the output")
    return value


class StreamOptions(Strict):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's field; needs `include_usage`
    include_obfuscation: bool | None = None  # no effect: nothing is obfuscated

    @property
    def any_set(self) -> bool:
        return bool(self.include_usage or self.continuous_usage_stats)


class GenerationFields(ConstraintFields, ABC):
    """Fields of every request for tokens; null means the default, as in OpenAI's API."""

    effort_field: ClassVar[str] = "reasoning_effort"  # which `effort` comes from

    model: str | None = None  # the served model by default
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    logit_bias: Annotated[dict[int, float], BeforeValidator(_logit_bias, dict[str, Bias] | None)] = Field(
        default_factory=dict
    )
    stop: Annotated[tuple[str, ...], BeforeValidator(stop_strings, str | Stops | None)] = ()
    stop_token_ids: Annotated[list[Id], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    min_tokens: Id | None = None
    ignore_eos: bool | None = None
    bad_words: Annotated[tuple[str, ...], BeforeValidator(_bad_words)] = ()
    allowed_token_ids: (
        Annotated[list[Id], Field(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS, fail_fast=True)] | None
    ) = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = (
        None  # no effect: the text of a token does not depend on its neighbours
    )
    truncate_prompt_tokens: Annotated[int, AfterValidator(truncation)] | None = None
    truncation_side: Literal["left", "right"] | None = None  # which tokens are dropped; `left` by default
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    priority: Annotated[int, Field(ge=-LAST_CLASS, le=LAST_CLASS)] | None = None
    ttft_target: Annotated[float, Field(gt=0, le=3600)] | None = None  # seconds
    service_tier: Literal["auto", "default", "flex", "priority", "fast"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    request_id: str | None = None  # vLLM's field, no effect: the server makes the ids
    include_reasoning: bool | None = None  # true by default
    thinking_token_budget: Annotated[int, Field(ge=-1)] | None = None  # -1: none
    best_of: int | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    mm_processor_kwargs: Annotated[None, BeforeValidator(no_options)] = None
    vllm_xargs: Annotated[None, BeforeValidator(no_options)] = None
    documents: Annotated[None, only([])] = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT)] | None = None  # keeps prefixes apart
    chat_template: Annotated[None, only()] = None  # a template is a program; the server's is set by its operator
    logits_processors: Annotated[None, only([])] = None
    use_beam_search: Annotated[None, only(False)] = None
    length_penalty: Annotated[None, only(1, 1.0)] = None
    early_stopping: Annotated[None, only(False)] = None
    return_tokens_as_token_ids: Annotated[None, only(False)] = None

    @model_validator(mode="after")
    def _streaming(self) -> GenerationFields:
        if self.stream_options is not None and self.stream_options.any_set and not self.stream:
            raise contradiction("stream_options", "'stream_options' is only allowed when 'stream' is true")
        return self

    @model_validator(mode="after")
    def _best_of(self) -> GenerationFields:
        if self.best_of is not None and self.best_of != self.choices:
            text = f"'best_of' other than 'n' is not supported: got best_of={self.best_of} and n={self.choices}"
            raise contradiction("best_of", text)
        return self

    @model_validator(mode="after")
    def _one_class(self) -> GenerationFields:
        meant = TIER_CLASSES.get(self.service_tier or "auto")
        if self.priority is not None and meant is not None and meant != self.priority:
            text = f"'priority' {self.priority} and 'service_tier' '{self.service_tier}', which is {meant}, contradict"
            raise contradiction("priority", f"{text} each other")
        return self

    @property
    def request_class(self) -> int:
        """The class of the request; the lowest is served first."""
        return TIER_CLASSES.get(self.service_tier or "auto", 0) if self.priority is None else self.priority

    @property
    def choices(self) -> int:
        """Choices per prompt."""
        return self.n or 1

    @property
    def requested_max_tokens(self) -> int | None:
        return self.max_tokens

    @property
    @abstractmethod
    def requested_logprobs(self) -> int | None:
        """The number of likeliest tokens to return besides the sampled one; None: no log probabilities."""

    @property
    def requested_prompt_logprobs(self) -> int | None:
        """The number of likeliest tokens to return for each prompt token besides itself; None: no log probabilities."""
        return None

    @property
    def echoes(self) -> bool:
        """Whether the answer's text begins with the prompt."""
        return False

    @property
    def tool_use(self) -> ToolUse:
        """The tools and how they may be called."""
        return NO_TOOLS

    @property
    def effort(self) -> Effort | None:
        """How much the model is to reason."""
        return None

    @property
    def requested_verbosity(self) -> Verbosity | None:
        """How long the answer is to be."""
        return None

    @property
    def reasoning_field(self) -> str | None:
        """The field that asks the model to reason, if one does."""
        if self.thinking_budget is not None:
            return self.budget_field
        return None if self.effort in (None, "none") else self.effort_field

    @property
    def thinking_budget(self) -> int | None:
        """How many tokens of reasoning there may be; None: any number."""
        return None if self.thinking_token_budget == -1 else self.thinking_token_budget

    @property
    def budget_field(self) -> str:
        """The field that `thinking_budget` comes from."""
        return "thinking_token_budget"

    @property
    def shows_reasoning(self) -> bool:
        """Whether the answer has the model's reasoning."""
        return self.include_reasoning is not False

    @property
    def template_variables(self) -> dict[str, Any]:
        """The variables that the request gives to the chat template."""
        return template_variables(self.chat_template_kwargs, self.effort, self.requested_verbosity)

    @property
    def scored(self) -> int | None:
        """The number of likeliest tokens that the engine finds for each prompt token, for `echo` or `prompt_logprobs`;
        None: the prompt is not scored."""
        counts = [self.requested_prompt_logprobs, self.requested_logprobs if self.echoes else None]
        return max((count for count in counts if count is not None), default=None)

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def sampling(
        self,
        max_new_tokens: int,
        seed: int,
        bad_words: tuple[tuple[int, ...], ...] = (),
        defaults: SamplingDefaults = NO_DEFAULTS,
    ) -> SamplingParams:
        """The sampling parameters. `seed`: used if the client gave none. `bad_words`: token ids of each word.
        `defaults`: for fields that the client left out."""
        return SamplingParams(
            max_new_tokens=max_new_tokens,
            temperature=_first(self.temperature, defaults.temperature, 1.0),
            top_p=_first(self.top_p, defaults.top_p, 1.0),
            top_k=max(_first(self.top_k, defaults.top_k, 0), 0),
            min_p=_first(self.min_p, defaults.min_p, 0.0),
            seed=_first(self.seed, seed) % (1 << 64),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=_first(self.repetition_penalty, defaults.repetition_penalty, 1.0),
            logit_bias=self.logit_bias,
            logprobs=self.requested_logprobs if self.scored is None else self.requested_logprobs or 0,
            min_tokens=self.min_tokens or 0,
            ignore_eos=bool(self.ignore_eos),
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            bad_words=bad_words,
            allowed_token_ids=tuple(dict.fromkeys(self.allowed_token_ids or ())),
            include_stop=bool(self.include_stop_str_in_output),
            skip_special_tokens=self.skip_special_tokens is not False,
            prompt_logprobs=self.scored,
            cache_salt=self.cache_salt or "",
        )


def _first(*values: Any) -> Any:
    """The first value that is not None."""
    return next(value for value in values if value is not None)
