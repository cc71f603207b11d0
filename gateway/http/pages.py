"""Pages of a list: `limit` and `after`, as OpenAI's lists have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from gateway.errors import ApiError, Kind
from gateway.http.documented import query

AFTER = query("after", {"type": "string"}, "The id of the object before the first one.")


def limit_of(request: Request, default: int, most: int) -> int:
    """The query's `limit`, 1 to `most`. Raises ApiError."""
    asked = request.query_params.get("limit", str(default))
    number = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 0
    if not 1 <= number <= most:
        raise ApiError(Kind.INVALID, f"Invalid 'limit': must be 1 to {most} (got '{asked[:50]}').", "limit")
    return number


def after_of(request: Request, ids: Sequence[str], newest_first: bool) -> int:
    """How many of `ids`, which sort by creation, come before the page: up to the one that `after` names. It may have
    been deleted meanwhile."""
    after = request.query_params.get("after")
    if after is None:
        return 0
    return sum(id >= after for id in ids) if newest_first else sum(id <= after for id in ids)


def limit_query(default: int, most: int) -> dict[str, Any]:
    """The parameter for the document."""
    return query("limit", {"type": "integer", "minimum": 1, "maximum": most, "default": default}, "Objects at most.")


def page(objects: list[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    """OpenAI's list object."""
    first, last = (objects[0]["id"], objects[-1]["id"]) if objects else ("", "")
    return {"object": "list", "data": objects, "first_id": first, "last_id": last, "has_more": has_more}
