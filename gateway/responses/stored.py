"""What the pool keeps of a response besides its tokens, and how any gateway reads it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import orjson

from gateway.answer import Answer
from gateway.generation import Generation, size_of
from gateway.model import ServedModel
from gateway.plan import AnswerKind
from gateway.responses.objects import Asked, response
from gateway.schemas.chat import Message
from gateway.transcript import Transcript
from services.messages import TokenEvent

PLAIN = {"role", "content", "refusal"}  # fields of a message that its role and its text say


@dataclass(frozen=True, slots=True)
class Extra:
    """The part of the plan that is ours: what the object echoes, and the conversation without instructions.

    `ids`: parallel to the conversation, the ids that its items had before; None: the item is new and has none.
    """

    echo: dict[str, Any]
    conversation: list[Message]
    ids: list[str | None]

    def pack(self) -> bytes:
        said = [[m.role, m.text, m.model_dump(exclude=PLAIN, exclude_none=True)] for m in self.conversation]
        return orjson.dumps({"echo": self.echo, "conversation": said, "ids": self.ids})

    @classmethod
    def unpack(cls, extra: bytes) -> Self:
        fields = orjson.loads(extra)
        said = [Message(role=role, content=text, **dict(*more)) for role, text, *more in fields["conversation"]]
        return cls(fields["echo"], said, fields.get("ids") or [None] * len(said))  # an older build kept no ids


class StoredResponse:
    """One response as its generation tells it. `generation.plan` must be a response's."""

    def __init__(self, generation: Generation, model: ServedModel) -> None:
        plan = generation.plan
        assert plan.kind is AnswerKind.RESPONSE, f"{generation.request} is a {plan.kind}"
        self.generation = generation
        self.extra = Extra.unpack(plan.extra)
        self.asked = Asked(
            generation.request, model.name, plan.created, plan.prompt_tokens, plan.service_tier, self.extra.echo
        )
        choice = Answer(plan, model, generation.request).choices[0]
        self._size = 0  # of the events that were read
        self.transcript = Transcript(choice, model.tokenizer, plan.with_logprobs)

    def close(self) -> None:
        """Nobody reads it any more."""
        self.generation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ended(self) -> bool:
        return self.transcript.end is not None

    async def read(self, until: float | None) -> None:
        """Take in what has come and what comes, to its end or to the loop's time `until`.

        Raises ClientGone, or ApiError when the response is lost.
        """
        while not self.ended:
            events = await self.generation.take(until)
            if not events:
                return
            self._size += size_of(events)
            await self.generation.work(size_of(events), self._add, events)

    async def body(self) -> bytes:
        """JSON of the response object as far as it was read."""
        return await self.generation.work(self._size, lambda: orjson.dumps(response(self.asked, self.transcript)))

    def _add(self, events: list[TokenEvent]) -> None:
        self.transcript.add_all(events)
        self.transcript.take(silent=True)
