"""Plan: what an answer needs besides its tokens. The pool keeps it with the request, so that any gateway can answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gateway.errors import ApiError, Kind
from gateway.schemas.answers import ServiceTier
from services import wire
from services.errors import Unreadable


class AnswerKind(StrEnum):
    """Which API object the answer is."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSE = "response"
    MESSAGE = "message"
    EMBEDDING = "embedding"
    SCORE = "score"
    RERANK = "rerank"
    CLASSIFY = "classify"

    @property
    def prefix(self) -> str:
        """The prefix of the ids of such requests; 32 hexadecimal digits follow it, and the number of a shard but 0."""
        return _PREFIXES[self]


_PREFIXES = {
    AnswerKind.CHAT: "chatcmpl-",
    AnswerKind.COMPLETION: "cmpl-",
    AnswerKind.RESPONSE: "resp_",
    AnswerKind.MESSAGE: "msg_",
    AnswerKind.EMBEDDING: "embd-",
    AnswerKind.SCORE: "score-",
    AnswerKind.RERANK: "rerank-",
    AnswerKind.CLASSIFY: "classify-",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How the tokens of a request become its answer; `pack()` is the `body` of its submission.

    `digest`: two HTTP requests with the same digest ask for the same tokens. `max_new_tokens`: the maximum over the
    choices. `service_tier`: the value in the answer, if any. `prompts`: empty unless the answer contains part of them.
    `extra`: data of the API that the request came through. `echo`: each text begins with its prompt; `texts` holds the
    prompts as the client wrote them, "" where it sent token ids. `logprobs`, `prompt_logprobs`: the number of likeliest
    tokens shown for each output token and each prompt token. `silent`: the client asked for no tokens, and the one
    token that each choice generates is not part of the answer. `tool_parser`, `reasoning_parser`: how the text is read
    (see `gateway/answer/parsers`); empty: all text is content. `reasoning_open`: the prompt ends inside the reasoning.
    `parallel_tool_calls`: false keeps the first call only. `include_reasoning`: false leaves the reasoning out.
    `types`: for each tool, the JSON types of its parameters that are not only strings (see `parameter_types`), where
    the parser needs them. `model`: the name of its adapter; empty: the request has none. `custom`: the names of custom
    tools, whose calls have a text in place of arguments.
    """

    kind: AnswerKind
    created: int  # Unix seconds
    digest: str
    choices: int
    n: int  # choices per prompt; those of one prompt are consecutive
    prompt_tokens: int  # over all prompts, independent of n
    max_new_tokens: int
    include_usage: bool = False
    return_token_ids: bool = False
    with_logprobs: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    service_tier: ServiceTier | None = None
    prompts: list[list[int]] = field(default_factory=list)
    extra: bytes = b""
    continuous_usage: bool = False  # with `include_usage`: each chunk has the usage so far
    include_stop: bool = False
    skip_special_tokens: bool = True
    echo: bool = False
    texts: list[str] = field(default_factory=list)
    logprobs: int = 0
    prompt_logprobs: int | None = None
    silent: bool = False
    tool_parser: str = ""
    reasoning_parser: str = ""
    reasoning_open: bool = False
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    types: dict[str, dict[str, str]] = field(default_factory=dict)
    model: str = ""
    custom: tuple[str, ...] = ()

    @property
    def chat(self) -> bool:
        return self.kind is AnswerKind.CHAT

    def prompt_of(self, choice: int) -> list[int]:
        """The token ids of a choice's prompt."""
        return self.prompts[choice // self.n]

    def pack(self) -> bytes:
        return wire.pack(self)

    @classmethod
    def unpack(cls, body: bytes) -> Plan:
        """Raises ApiError for a plan that this build cannot read."""
        try:
            return wire.unpack(cls, body)
        except Unreadable as error:
            text = f"The request was submitted to another version of this server: {error}."
            raise ApiError(Kind.FAILED, text) from error
