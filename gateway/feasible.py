"""What the fields of a request ask for together: a token to choose, and an answer that a gateway can hold."""

from __future__ import annotations

from collections.abc import Sequence, Set

from gateway.errors import ApiError, Kind
from gateway.plan import AnswerKind
from gateway.schemas.common import GenerationFields
from services.messages import NewSequence
from services.requests import NO_TOKEN_LEFT, SamplingParams

MOST_LOGPROBS = 1 << 18  # of an answer: 14 MB of JSON, and 90 MB in memory while it is made


def check_choice(sampling: SamplingParams, eos: Set[int], vocab_size: int) -> None:
    """Raises ApiError where no token may be the first of the output."""
    ruled_out = {word[0] for word in sampling.bad_words if len(word) == 1}
    if sampling.min_tokens:
        ruled_out.update(sampling.stop_token_ids, () if sampling.ignore_eos else eos)
    left = set(sampling.allowed_token_ids) - ruled_out if sampling.allowed_token_ids else len(ruled_out) < vocab_size
    if not left:
        param = "allowed_token_ids" if sampling.allowed_token_ids else "bad_words"
        raise ApiError(Kind.INVALID, f"Invalid '{param}': {NO_TOKEN_LEFT}.", param)


def check_logprobs(
    kind: AnswerKind, fields: GenerationFields, prompts: Sequence[Sequence[int]], sequences: Sequence[NewSequence]
) -> None:
    """Raises ApiError where the answer would have too many log probabilities. Those of output tokens do not count in
    streams of completions and chats, which are not held as a whole."""
    # a chat tells those of its prompt once, a completion with each choice
    prompt_tokens = sum(map(len, prompts)) * (1 if kind is AnswerKind.CHAT else fields.choices)
    count = prompt_tokens * _each(fields.asked_prompt_logprobs)
    if fields.asked_logprobs is not None:
        echoed = prompt_tokens if fields.echoes else 0
        held = not fields.stream or kind is AnswerKind.RESPONSE
        made = sum(sequence.sampling.max_new_tokens for sequence in sequences) if held else 0
        count += (echoed + made) * _each(fields.asked_logprobs)
    if count > MOST_LOGPROBS:
        text = f"{count} log probabilities (choices x tokens x those of each) were asked, at most {MOST_LOGPROBS} are"
        param = "prompt_logprobs" if fields.asked_logprobs is None else "logprobs"
        raise ApiError(Kind.INVALID, f"{text} taken in one answer. Ask for fewer, or split the request.", param)


def _each(likeliest: int | None) -> int:
    """The token's own, and those of the likeliest."""
    return 0 if likeliest is None else 1 + likeliest
