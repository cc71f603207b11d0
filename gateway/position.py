"""Position: where a client stands in a stream, as the `id` of the last event it had says (see `sse`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from starlette.requests import Request

from gateway.answer.plan import Plan
from gateway.errors import ApiError, Kind

_ID = re.compile(r"([A-Za-z]{1,16}[-_][0-9a-f]{32}):([0-9]{1,10}(?:\.[0-9]{1,10})*)")


@dataclass(frozen=True, slots=True)
class Position:
    """`said`: for each choice that was opened, how many of its events the client has had."""

    request: str
    said: tuple[int, ...]

    @classmethod
    def of(cls, request: Request) -> Self | None:
        """What the header says; None where there is none. Raises ApiError."""
        id = request.headers.get("last-event-id")
        return cls.parse(id) if id else None

    @classmethod
    def of_post(cls, request: Request, stream: bool) -> Self | None:
        """The same for a request that may ask for a stream. Raises ApiError also where it asks for none."""
        position = cls.of(request)
        if position is not None and not stream:
            raise ApiError(Kind.INVALID, "'Last-Event-ID' is for streams: set 'stream' to true.", "Last-Event-ID")
        return position

    @classmethod
    def parse(cls, id: str) -> Self:
        """Raises ApiError for what is no event's id."""
        match = _ID.fullmatch(id)
        if match is None:
            raise _wrong(id, "is not the id of an event of this server: <request>:<i0>.<i1>...")
        return cls(match[1], tuple(map(int, match[2].split("."))))

    def check(self, plan: Plan) -> None:
        """Raises ApiError where no event of a stream with this plan has such an id.

        A position beyond the tokens that there are so far is taken, up to the most that may come: the pool's server
        may have lost tokens that the client has, and they come again.
        """
        opening = plan.chat or plan.return_token_ids
        if len(self.said) != plan.choices and not (opening and len(self.said) < plan.choices and not any(self.said)):
            raise self.wrong(f"counts {len(self.said)} choices, the request has {plan.choices}")
        for index, count in enumerate(self.said):
            most = plan.max_new_tokens + 1 + (index == plan.choices - 1)
            if count > most:
                raise self.wrong(f"counts {count} events of choice {index}, there can be {most} at most")

    def wrong(self, text: str) -> ApiError:
        """The error that says what is wrong with it."""
        return _wrong(str(self), text)

    def __str__(self) -> str:
        return f"{self.request}:{'.'.join(map(str, self.said))}"


def _wrong(id: str, text: str) -> ApiError:
    return ApiError(Kind.INVALID, f"'Last-Event-ID' {id[:200]} {text}.", "Last-Event-ID")
