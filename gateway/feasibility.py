"""Limits of combinations of fields: a first token that can be sampled, an engine that knows all of them, and an answer
that a gateway can hold."""

from __future__ import annotations

from collections.abc import Sequence, Set

from gateway.answer.plan import AnswerKind
from gateway.errors import ApiError, Kind
from gateway.schemas.generation import GenerationFields
from services.messages import EngineFigures, NewSequence
from services.requests import NO_TOKEN_LEFT, SamplingParams, needs_of

MAX_LOGPROBS = 1 << 18  # per answer: 14 MB of JSON, and 90 MB in memory while it is made


def check_choice(sampling: SamplingParams, eos: Set[int], vocab_size: int) -> None:
    """Raises ApiError if no token can be the first of the output."""
    banned = {word[0] for word in sampling.bad_words if len(word) == 1}
    if sampling.min_tokens:
        banned.update(sampling.stop_token_ids, () if sampling.ignore_eos else eos)
    left = set(sampling.allowed_token_ids) - banned if sampling.allowed_token_ids else len(banned) < vocab_size
    if not left:
        param = "allowed_token_ids" if sampling.allowed_token_ids else "bad_words"
        raise ApiError(Kind.INVALID, f"Invalid '{param}': {NO_TOKEN_LEFT}.", param)


def check_needs(sampling: SamplingParams, figures: EngineFigures) -> None:
    """Raises ApiError if the request needs a feature that the engine does not have."""
    for name in needs_of(sampling):
        if name not in figures.features:
            text = f"Invalid '{name}': the engines that run now are of a build that does not know it; leave it out."
            raise ApiError(Kind.INVALID, text, name)


def check_logprobs(
    kind: AnswerKind, fields: GenerationFields, prompts: Sequence[Sequence[int]], sequences: Sequence[NewSequence]
) -> None:
    """Raises ApiError if the answer would have too many log probabilities. Those of output tokens do not count in
    streams of completions and chat completions, which are not held as a whole."""
    # a chat completion has those of its prompt once, a completion in each choice
    prompt_tokens = sum(map(len, prompts)) * (1 if kind is AnswerKind.CHAT else fields.choices)
    count = prompt_tokens * _each(fields.requested_prompt_logprobs)
    if fields.requested_logprobs is not None:
        echoed = prompt_tokens if fields.echoes else 0
        held = not fields.stream or kind is AnswerKind.RESPONSE
        made = sum(sequence.sampling.max_new_tokens for sequence in sequences) if held else 0
        count += (echoed + made) * _each(fields.requested_logprobs)
    if count > MAX_LOGPROBS:
        text = f"{count} log probabilities (choices x tokens x those of each) were requested, at most {MAX_LOGPROBS}"
        param = "prompt_logprobs" if fields.requested_logprobs is None else "logprobs"
        raise ApiError(Kind.INVALID, f"{text} are accepted in one answer. Ask for fewer, or split the request.", param)


def _each(likeliest: int | None) -> int:
    """The number of log probabilities per token: its own and those of the likeliest tokens."""
    return 0 if likeliest is None else 1 + likeliest
