"""Settings of the schedulers, and the preset that chooses their defaults."""

from __future__ import annotations

import json
from math import inf
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, model_validator
from pydantic_settings import BaseSettings

from services.settings.types import Section, auto_or

# Algorithm 1 of the Orca paper: what `preset=paper` sets, unless a setting is given
PAPER: dict[str, Any] = {
    "policy": "iteration",
    "order": "fcfs",
    "token_budget": 0,
    "tbt_target": 0.0,
    "admission": "reserve",
    "lookahead": 0,
    "speculative_config": "off",
    "prefix_caching": False,
    "share_prefixes": False,
}

MOST_DRAFTED = 16  # tokens of a draft: more are seldom right, and each costs something
DRAFT_METHODS = ("ngram", "suffix")


def _lookahead(given: Any) -> int | Literal["auto"]:
    if given == "auto":
        return "auto"
    if str(given) not in ("0", "1"):
        raise ValueError("is neither 'auto' nor 0 or 1")
    return int(given)


def _speculative(given: Any) -> str:
    """Return `auto`, `off`, or the JSON of vLLM's fields `method` and `num_speculative_tokens`."""
    if given in ("auto", "off"):
        return str(given)
    try:
        fields = json.loads(given) if isinstance(given, str) else dict(given)
        fields = {"method": "suffix", **fields}
    except (TypeError, ValueError):
        raise ValueError("is neither 'auto', 'off' nor a JSON object") from None
    if unknown := sorted(fields.keys() - {"method", "num_speculative_tokens"}):
        raise ValueError(f"has {unknown[0]!r}; the fields are method and num_speculative_tokens")
    if fields["method"] not in DRAFT_METHODS:
        raise ValueError(f"has the method {fields['method']!r}; drafts come from the request's own text: ngram, suffix")
    most = fields.setdefault("num_speculative_tokens", MOST_DRAFTED)
    if type(most) is not int or not 1 <= most <= MOST_DRAFTED:
        raise ValueError(f"has {most!r} as num_speculative_tokens, which is a number from 1 to {MOST_DRAFTED}")
    return json.dumps(fields)


class SchedulingSettings(BaseSettings):
    """The part of `Settings` about scheduling."""

    preset: Annotated[
        Literal["default", "paper"],
        Section.SCHEDULING,
        Field(
            description="which defaults the settings of this section have; paper: those of Algorithm 1 of the Orca "
            "paper (whole prompts, all KV blocks at the start of a request, no lookahead, no prefix caching); settings "
            "that are given take precedence over the preset"
        ),
    ] = "default"
    policy: Annotated[
        Literal["iteration", "request"],
        Field(description="iteration: Orca's scheduling; request: a batch does not change until its last request ends"),
    ] = "iteration"
    order: Annotated[
        Literal["fcfs", "priority"],
        Field(
            description="order of waiting requests: by arrival, or by class, then slack to the TTFT target, with ageing"
        ),
    ] = "fcfs"
    max_batch_size: Annotated[
        int | Literal["auto"],
        auto_or("a number of requests", "from 1 on", lambda given: int(str(given)), lambda number: number >= 1),
        Field(description="maximum number of requests in one iteration; auto: 32, and up to 256, the most, on GPUs"),
    ] = "auto"
    token_budget: Annotated[
        int,
        Field(
            ge=0,
            description="maximum number of tokens in one iteration: decodes, then chunks of prompts; 0: no maximum, "
            "but 8192 on GPUs, which is also the most there",
        ),
    ] = 0
    tbt_target: Annotated[
        float | Literal["auto"],
        auto_or("a number of seconds", "from 0 on", float, lambda seconds: 0 <= seconds < inf),
        Field(
            description="target in seconds between tokens, which limits chunks of prompts; 0: none; auto: 0.18 on CPUs "
            "and 0.05 on GPUs, or twice what an iteration without prompts takes if that is more"
        ),
    ] = "auto"
    admission: Annotated[
        Literal["reserve", "on_demand"],
        Field(
            description="KV blocks: all at the start of a request, or as they fill, with preemption when they run out"
        ),
    ] = "on_demand"
    lookahead: Annotated[
        int | Literal["auto"],
        PlainValidator(_lookahead),
        Field(
            description="1: the engine gets the next iteration before the tokens of the last one are known, so that a "
            "GPU never waits; 0: it does not; auto: 1 on GPUs, unless an engine has several processes or "
            "speculative_config asks for drafts, and 1 for models that make vectors, with other texts"
        ),
    ] = "auto"
    speculative_config: Annotated[
        str,
        PlainValidator(_speculative),
        Field(
            description="drafts, which change no token: auto uses them where they are expected to save time; off; or "
            "JSON as for vLLM, with method (ngram or suffix: the request's own text) and num_speculative_tokens, the "
            "most tokens of a draft"
        ),
    ] = "auto"
    prefix_caching: Annotated[bool, Field(description="share KV blocks between requests with the same prefix")] = True
    share_prefixes: Annotated[
        bool,
        Field(description="share prefixes between tenants too; a tenant can then learn from timing what others sent"),
    ] = False

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, values: Any) -> Any:
        """Return `values` with those of the preset for settings that are not given."""
        return PAPER | values if isinstance(values, dict) and values.get("preset") == "paper" else values

    def check_scheduling(self) -> None:
        """Raises ValueError if settings of scheduling contradict each other."""
        if self.max_batch_size != "auto" and 0 < self.token_budget < self.max_batch_size:
            raise ValueError(
                f"token_budget={self.token_budget} is less than max_batch_size={self.max_batch_size}: "
                "each request of a full batch needs a token"
            )
        if self.speculative_config not in ("auto", "off"):
            if self.lookahead == 1:
                raise ValueError("speculative_config needs lookahead=0: a draft follows tokens that are known")
            if self.policy == "request":
                raise ValueError("speculative_config needs policy=iteration")
        if self.share_prefixes and not self.prefix_caching:
            raise ValueError("share_prefixes=True shares nothing with prefix_caching=False")

    @property
    def num_speculative_tokens(self) -> int:
        """The largest number of tokens of a draft; 0: there are none."""
        if self.speculative_config == "off" or self.lookahead == 1 or self.policy == "request":
            return 0
        if self.speculative_config == "auto":
            return MOST_DRAFTED
        most: int = json.loads(self.speculative_config)["num_speculative_tokens"]
        return most
