"""The input items of a response: `GET /v1/responses/{id}/input_items`."""

from __future__ import annotations

from collections.abc import Container, Sequence

from starlette.requests import Request

from gateway.errors import ApiError, Kind
from gateway.http.pages import limit_of, newest_first, page
from gateway.responses.objects import ResponseHead, call_item, reasoning_part, text_part
from gateway.responses.stored import StoredResponse
from gateway.schemas.chat import Message
from gateway.schemas.response_answers import InputItem, InputItemList, InputText
from gateway.schemas.responses import INCLUDABLE

MAX_LIMIT = 100
DEFAULT_LIMIT = 20


def page_query(request: Request) -> tuple[int, bool, str | None]:
    """The query: how many items, whether the newest is the first, and the id of the item before the first one. Raises
    ApiError naming the parameter that is wrong."""
    query = request.query_params
    limit, newest = limit_of(request, DEFAULT_LIMIT, MAX_LIMIT), newest_first(request)
    for name in [*query.getlist("include"), *query.getlist("include[]")]:
        if name not in INCLUDABLE:
            text = f"Invalid 'include': '{name[:50]}' is not one of {', '.join(sorted(INCLUDABLE))}."
            raise ApiError(Kind.INVALID, text, "include")
    return limit, newest, query.get("after")


def page_of_items(stored: StoredResponse, limit: int, newest: bool, after: str | None) -> InputItemList:
    """OpenAI's list of the items that the response was made from, including earlier turns, without instructions. The
    parameters are those of `page_query`. Raises ApiError if `after` names none of them.
    """
    ids = item_ids(stored.head, stored.extra.ids)
    conversation = stored.extra.conversation
    custom = {call.id for message in conversation for call in message.calls if call.type == "custom"}
    items = [_item(id, message, custom) for id, message in zip(ids, conversation, strict=True)]
    if newest:
        items.reverse()
    if after is not None:
        place = next((i for i, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            text = f"Invalid 'after': '{after[:100]}' is not an input item of response '{stored.head.id}'."
            raise ApiError(Kind.INVALID, text, "after")
        items = items[place + 1 :]
    return page(items[:limit], len(items) > limit)


def item_ids(head: ResponseHead, given: Sequence[str | None]) -> list[str]:
    """The ids of the input items, the same at every gateway: those `given`, else made of the response's id and the
    item's index. A duplicate id is replaced, because a page begins after an id."""
    ids: dict[str, None] = {}
    for index, id in enumerate(given):
        ids[f"msg_{head.suffix}_{index}" if id is None or id in ids else id] = None
    return list(ids)


def _item(id: str, message: Message, custom: Container[str | None]) -> InputItem:
    """`custom`: the ids of the calls of custom tools."""
    if message.tool_calls:
        (call,) = message.tool_calls
        arguments = call.function.arguments
        assert call.id is not None, "a call of the API has an id"
        assert isinstance(arguments, str), "a call of the API has its arguments as text"
        return call_item(id, "completed", call.id, call.function.name, arguments, call.type == "custom")
    if message.role == "tool":
        assert message.tool_call_id is not None, "an output of the API names its call"
        return {
            "id": id,
            "type": "custom_tool_call_output" if message.tool_call_id in custom else "function_call_output",
            "status": "completed",
            "call_id": message.tool_call_id,
            "output": message.text,
        }
    if message.reasoning_content is not None:
        thoughts = [reasoning_part(message.reasoning_content)]
        return {"id": id, "type": "reasoning", "status": "completed", "summary": [], "content": thoughts}
    if message.role == "assistant":
        said = [text_part(message.text)]
        return {"id": id, "type": "message", "role": "assistant", "status": "completed", "content": said}
    assert message.role in ("user", "system", "developer"), f"an item of the role {message.role}"
    text: list[InputText] = [{"type": "input_text", "text": message.text}]
    return {"id": id, "type": "message", "role": message.role, "status": "completed", "content": text}
