"""Plan: what an answer is made of besides its tokens. It lies with the request in the pool: any gateway can answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from services import wire


class AnswerKind(StrEnum):
    """Which of the API's objects an answer is."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSE = "response"

    @property
    def prefix(self) -> str:
        """What the ids of such requests begin with; 32 hexadecimal digits follow."""
        return _PREFIXES[self]


_PREFIXES = {AnswerKind.CHAT: "chatcmpl-", AnswerKind.COMPLETION: "cmpl-", AnswerKind.RESPONSE: "resp_"}


@dataclass(frozen=True, slots=True)
class Plan:
    """How the tokens of a request become its answer; `pack()` is the `body` of its submission.

    `digest` tells whether another HTTP request asks for the same. `max_new_tokens` is the most of any choice.
    `prompts` are there where the client asked for token ids, else empty. `extra` is the caller's own.
    """

    kind: AnswerKind
    created: int  # Unix seconds
    digest: str
    choices: int
    prompt_tokens: int  # each prompt once, whatever n
    max_new_tokens: int
    include_usage: bool = False
    return_token_ids: bool = False
    with_logprobs: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    prompts: list[list[int]] = field(default_factory=list)
    extra: bytes = b""

    @property
    def chat(self) -> bool:
        return self.kind is AnswerKind.CHAT

    def prompt_of(self, choice: int) -> list[int]:
        """The token ids of a choice's prompt: `n` choices of each come one after the other."""
        return self.prompts[choice * len(self.prompts) // self.choices]

    def pack(self) -> bytes:
        return wire.pack(self)

    @classmethod
    def unpack(cls, body: bytes) -> Plan:
        return wire.unpack(cls, body)
