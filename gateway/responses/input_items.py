"""The input items of a response: `GET /v1/responses/{id}/input_items`, OpenAI's list, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from starlette.requests import Request

from gateway.errors import ApiError, Kind
from gateway.responses.objects import Asked
from gateway.responses.stored import StoredResponse
from gateway.schemas.chat import Message
from gateway.schemas.responses import INCLUDABLE

MAX_LIMIT = 100
DEFAULT_LIMIT = 20


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is asked for. `after`: the id of the item before the first one."""

    limit: int = DEFAULT_LIMIT
    ascending: bool = False
    after: str | None = None

    @classmethod
    def of(cls, request: Request) -> Self:
        """Raises ApiError naming the parameter that is wrong."""
        query = request.query_params
        limit, order = query.get("limit", str(DEFAULT_LIMIT)), query.get("order", "desc")
        if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= MAX_LIMIT):
            text = f"Invalid 'limit': must be an integer from 1 to {MAX_LIMIT} (got '{limit[:50]}')."
            raise ApiError(Kind.INVALID, text, "limit")
        if order not in ("asc", "desc"):
            raise ApiError(Kind.INVALID, f"Invalid 'order': must be asc or desc (got '{order[:50]}').", "order")
        for name in [*query.getlist("include"), *query.getlist("include[]")]:
            if name not in INCLUDABLE:
                text = f"Invalid 'include': '{name[:50]}' is not one of {', '.join(sorted(INCLUDABLE))}."
                raise ApiError(Kind.INVALID, text, "include")
        return cls(int(limit), order == "asc", query.get("after"))


def input_items(stored: StoredResponse, page: Page) -> dict[str, Any]:
    """OpenAI's list of the items that the response was made from, those of earlier turns included, instructions not.

    Raises ApiError where `page.after` names none of them.
    """
    ids = ids_of(stored.asked, stored.extra.ids)
    items = [_item(id, message) for id, message in zip(ids, stored.extra.conversation, strict=True)]
    if not page.ascending:
        items.reverse()
    if page.after is not None:
        place = next((i for i, item in enumerate(items) if item["id"] == page.after), None)
        if place is None:
            text = f"Invalid 'after': '{page.after[:100]}' is no input item of response '{stored.asked.id}'."
            raise ApiError(Kind.INVALID, text, "after")
        items = items[place + 1 :]
    shown = items[: page.limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else "",  # OpenAI's document has a string in any case
        "last_id": shown[-1]["id"] if shown else "",
        "has_more": len(items) > len(shown),
    }


def ids_of(asked: Asked, given: Sequence[str | None]) -> list[str]:
    """The ids of the input items, the same at every gateway: those `given`, else made of the response's id and the
    item's place. An id that was given twice counts once, because a page begins after an id."""
    ids: dict[str, None] = {}
    for place, id in enumerate(given):
        ids[f"{asked.item_id}_{place}" if id is None or id in ids else id] = None
    return list(ids)


def _item(id: str, message: Message) -> dict[str, Any]:
    if message.tool_calls:
        (call,) = message.tool_calls
        arguments = call.function.arguments
        said = {"call_id": call.id, "name": call.function.name, "arguments": arguments}
        return {"id": id, "type": "function_call", "status": "completed", **said}
    if message.role == "tool":
        said = {"call_id": message.tool_call_id, "output": message.text}
        return {"id": id, "type": "function_call_output", "status": "completed", **said}
    if message.reasoning_content is not None:
        content = [{"type": "reasoning_text", "text": message.reasoning_content}]
        return {"id": id, "type": "reasoning", "status": "completed", "summary": [], "content": content}
    if message.role == "assistant":
        part: dict[str, Any] = {"type": "output_text", "text": message.text, "annotations": [], "logprobs": []}
    else:
        part = {"type": "input_text", "text": message.text}
    return {"id": id, "type": "message", "role": message.role, "status": "completed", "content": [part]}
