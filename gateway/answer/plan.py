"""Plan: what an answer is made of besides its tokens. It lies with the request in the pool: any gateway can answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gateway.errors import ApiError, Kind
from services import wire
from services.errors import Unreadable


class AnswerKind(StrEnum):
    """Which of the API's objects an answer is."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSE = "response"
    MESSAGE = "message"

    @property
    def prefix(self) -> str:
        """What the ids of such requests begin with; 32 hexadecimal digits follow."""
        return _PREFIXES[self]


_PREFIXES = {
    AnswerKind.CHAT: "chatcmpl-",
    AnswerKind.COMPLETION: "cmpl-",
    AnswerKind.RESPONSE: "resp_",
    AnswerKind.MESSAGE: "msg_",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How the tokens of a request become its answer; `pack()` is the `body` of its submission.

    `digest` tells whether another HTTP request asks for the same. `max_new_tokens` is the most of any choice.
    `service_tier` is what the answer says of it, if anything.
    `prompts` are there where the answer has something of them, else empty. `extra` is the caller's own.
    `echo`: each text begins with its prompt, of which `texts` are what the client wrote, or "" where it gave token ids.
    `logprobs` and `prompt_logprobs` count the likeliest tokens that are shown of each token, of each prompt token.
    `silent`: no token was asked for, and the one that each choice has is no part of the answer.
    """

    kind: AnswerKind
    created: int  # Unix seconds
    digest: str
    choices: int
    n: int  # choices of each prompt, one after the other
    prompt_tokens: int  # each prompt once, whatever n
    max_new_tokens: int
    include_usage: bool = False
    return_token_ids: bool = False
    with_logprobs: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    service_tier: str | None = None
    prompts: list[list[int]] = field(default_factory=list)
    extra: bytes = b""
    continuous_usage: bool = False  # with `include_usage`: each chunk tells the usage so far
    include_stop: bool = False
    skip_special_tokens: bool = True
    echo: bool = False
    texts: list[str] = field(default_factory=list)
    logprobs: int = 0
    prompt_logprobs: int | None = None
    silent: bool = False

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
        """Raises ApiError for one that this build cannot read."""
        try:
            return wire.unpack(cls, body)
        except Unreadable as error:
            text = f"The request was submitted to another version of this server: {error}."
            raise ApiError(Kind.FAILED, text) from error
