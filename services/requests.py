"""A request as all know it: one sequence of tokens, how it is sampled, why it ended.

"Request" here means one *sequence*: an HTTP request with `n` choices or several prompts is a group of them,
named `<request>/<choice>`, independent of each other once submitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

NO_TOKEN_LEFT = "logit_bias, allowed_token_ids, bad_words, stop_token_ids and min_tokens leave no token to choose"
BATCH_CLASS = 9  # the class of a batch's lines: behind all that a request can ask for, whatever the order


class FinishReason(StrEnum):
    """Why a request ended. `STOP` and `LENGTH` are OpenAI's words."""

    STOP = "stop"  # EOS, a stop token id or a stop string
    LENGTH = "length"  # max_new_tokens, or the model's length
    CANCELLED = "cancelled"  # the client went away or asked for it
    ERROR = "error"  # failed alone; `End.error` says how


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token of a request is chosen and when it stops. All values are already checked.

    Sampling noise is a function of (`seed`, `choice`, position, vocabulary id) alone, so the same request gives
    the same tokens in any batch and in any process.
    """

    max_new_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    min_p: float = 0.0
    seed: int = 0  # 0 <= seed < 2**64
    choice: int = 0  # which of the group's sequences this is
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    logprobs: int | None = None  # None: none; k: the sampled token's and those of the k likeliest
    min_tokens: int = 0  # before as many output tokens, EOS and stop token ids are never sampled
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()  # token ids; the last token of one is not sampled behind the others
    allowed_token_ids: tuple[int, ...] = ()  # only these are sampled; none: all are
    include_stop: bool = False  # the text of the stop string or stop token that ends the request stays
    skip_special_tokens: bool = True  # false: special tokens are text
    # Of each prompt token but the first its log probability, and those of the k likeliest; None: none. They come in the
    # `Logprobs` of the first output token, so `logprobs` must not be None then.
    prompt_logprobs: int | None = None
