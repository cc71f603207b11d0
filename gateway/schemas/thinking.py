"""What a request says about the model's reasoning, and the variables that it gives to the chat template."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, Field

from gateway.schemas.strict import Strict

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
    budget_tokens: Annotated[int, Field(ge=1)] | None = None  # no effect: `max_tokens` limits thinking and answer
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
