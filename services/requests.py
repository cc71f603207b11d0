"""What all parts know of a request: how it is sampled, where it ran, why it ended, and why the pool refused it.

A request is one sequence of tokens. An HTTP request with several choices or prompts is a group of requests, named
`<request>/<choice>`, which are independent of each other after they were submitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

NO_TOKEN_LEFT = (
    "the grammar, logit_bias, allowed_token_ids, bad_words, stop_token_ids and min_tokens leave no token to choose"
)
NO_GRAMMAR = "the grammar cannot be followed"  # begins such errors of a request
DEFAULT_TENANT = "default"  # of requests without a key
BATCH_CLASS = 9  # the class of lines of batches, later than all classes that a request can ask for


def is_line(priority: int) -> bool:
    """Return whether this is the class of lines of batches."""
    return priority >= BATCH_CLASS


def class_label(priority: int) -> str:
    """Return how metrics name a class."""
    return "batch" if is_line(priority) else str(priority)


class FinishReason(StrEnum):
    """Why a request ended. `STOP` and `LENGTH` are terms of OpenAI."""

    STOP = "stop"  # EOS, a stop token id, or a stop string
    LENGTH = "length"  # max_new_tokens, or the model's length
    CANCELLED = "cancelled"  # the client disconnected or asked for it
    ERROR = "error"  # this request failed; `End.error` says why


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """After how many tokens the reasoning of an answer is ended.

    `tokens` of the reasoning are sampled freely; then the tokens of `closing` follow, which contain the mark `end`. The
    reasoning begins with the mark `begin` at the beginning of the output, or with the output itself if it is `opened`.
    `again`: the reasoning may have several parts, anywhere in the output, and `tokens` are those of all of them; a part
    that begins after the first forced end is closed at once, by these tokens. Empty: it has one part.
    """

    tokens: int
    begin: str
    end: str
    closing: tuple[int, ...]
    opened: bool = False
    again: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of a request are sampled, and when it stops. All values are valid.

    Fields travel by position, so a new field must be the last one. It is a feature (see `FEATURES`).

    Sampling noise is a function of (`seed`, `choice`, position, vocabulary id) only, so the same request gets the same
    tokens in any batch and any process.
    """

    max_new_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    min_p: float = 0.0
    seed: int = 0  # 0 <= seed < 2**64
    choice: int = 0  # the number of this sequence in its group
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    logprobs: int | None = None  # None: none; k: of the sampled token and of the k likeliest ones
    min_tokens: int = 0  # EOS and stop token ids are not sampled before this many output tokens
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()  # token ids; the last token of each is not sampled after the others
    allowed_token_ids: tuple[int, ...] = ()  # only these are sampled; empty: all are
    include_stop: bool = False  # the stop string or stop token that ends the request stays in the text
    skip_special_tokens: bool = True  # false: special tokens are text
    # Log probabilities of each prompt token but the first, and of the k likeliest ones; None: none. They are sent in
    # the `Logprobs` of the first output token, so `logprobs` must not be None.
    prompt_logprobs: int | None = None
    grammar: str = ""  # of the output, in llguidance's syntax (see `services/grammar`); empty: none
    cache_salt: str = ""  # requests with different ones share no prefix
    # With one, the prompt becomes a vector of so many float32: an embedding, or scores of classes. It is sent in the
    # `Logprobs` of the only output token, which means nothing itself; so `logprobs` must not be None.
    vector: int = 0
    second_text: int = 0  # the prompt is a pair of texts, and the second begins at this token; 0: it is one text
    thinking_token_budget: ThinkingBudget | None = None  # of the reasoning; None: it is not limited
    # The digest of the adapter with which the request was accepted (see `services/adapters/store.py`); empty: none.
    adapter: str = ""


_NAMES = [one.name for one in fields(SamplingParams)]
_FIRST = _NAMES.index("grammar") + 1  # fields that every build knows which serves a pool of this layout
FEATURES = tuple(_NAMES[_FIRST:])  # later fields, which only some of the builds know that serve one pool
OF_VECTORS = frozenset({"vector", "second_text"})  # which only an engine has whose model makes vectors
OF_ADAPTERS = frozenset({"adapter"})  # which only an engine has that serves adapters
_NEUTRAL = SamplingParams(max_new_tokens=1)


def needs_of(sampling: SamplingParams) -> dict[str, Any]:
    """Return the features that a request uses, with their values. Only an engine that has them may run it."""
    return {name: value for name in FEATURES if (value := getattr(sampling, name)) != getattr(_NEUTRAL, name)}


def known_to_all(sampling: SamplingParams) -> list[Any]:
    """Return the values of the fields that are no features."""
    return [getattr(sampling, name) for name in _NAMES[:_FIRST]]


@dataclass(frozen=True, slots=True)
class Tenure:
    """The time of a traced request at one seat, which is over. `claimed` and `left` are the seconds since it began and
    ended. `taken`: the seat's owner was dead or silent, so it has told nobody of this tenure."""

    seat: str
    epoch: str
    claimed: float
    left: float
    taken: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """The bound that a submission would exceed.

    `bound` is `waiting` (sequences), `waiting_tokens` (tokens of their prompts), `streams`, `bytes` (of requests that
    have not ended), `queue_wait` (seconds that it is expected to wait), or `message` (bytes of a request in the
    pool's format). `held` is the current value, `asked` the value with the submission, and `limit` the bound: that of
    the tenant if `own`, otherwise that of all tenants. `retry_after` is an estimate of the seconds until there is room.
    """

    bound: str
    own: bool
    held: int
    asked: int
    limit: int
    retry_after: int = field(default=1, compare=False)

    @property
    def for_good(self) -> bool:
        """Whether the submission would not even fit into an empty pool."""
        return self.asked > self.limit
