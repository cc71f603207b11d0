"""Pages of a list in OpenAI's format: the query parameters `limit`, `order` and `after`, and the list object."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from gateway.errors import ApiError, Kind
from gateway.http.openapi import query
from gateway.schemas.answers import Page, T

ORDERS = ("asc", "desc")
ORDER = query("order", {"type": "string", "enum": list(ORDERS), "default": "desc"}, "desc: the newest first.")
AFTER = query("after", {"type": "string"}, "The id of the object before the first one.")


def limit_parameter(default: int, most: int) -> dict[str, Any]:
    """The parameter `limit` for the document."""
    schema = {"type": "integer", "minimum": 1, "maximum": most, "default": default}
    return query("limit", schema, "The maximum number of objects.")


def limit_of(request: Request, default: int, most: int) -> int:
    """The query's `limit`, 1 to `most`. Raises ApiError."""
    limit = request.query_params.get("limit", str(default))
    number = int(limit) if limit.isascii() and limit.isdigit() and len(limit) < 10 else 0
    if not 1 <= number <= most:
        text = f"Invalid 'limit': must be an integer from 1 to {most} (got '{limit[:50]}')."
        raise ApiError(Kind.INVALID, text, "limit")
    return number


def newest_first(request: Request) -> bool:
    """Whether the query's `order` is `desc`, the default. Raises ApiError."""
    order = request.query_params.get("order", "desc")
    if order not in ORDERS:
        raise ApiError(Kind.INVALID, f"Invalid 'order': must be asc or desc (got '{order[:50]}').", "order")
    return order == "desc"


def start_of(request: Request, ids: Sequence[str], prefix: str, newest_first: bool) -> int:
    """The number of `ids`, which begin with `prefix` and sort by creation, before the page: those up to the id in the
    query's `after`, which may have been deleted. Raises ApiError for what was never such an id."""
    after = request.query_params.get("after")
    if after is None:
        return 0
    if not re.fullmatch(rf"{prefix}[0-9a-f]{{32}}", after):
        raise ApiError(Kind.INVALID, f"Invalid 'after': '{after[:100]}' is not an id of this list.", "after")
    return sum(id >= after for id in ids) if newest_first else sum(id <= after for id in ids)


def page(objects: list[T], has_more: bool) -> Page[T]:
    """OpenAI's list object. Without objects, its ids are "", because OpenAI's document requires strings."""
    first, last = (objects[0]["id"], objects[-1]["id"]) if objects else ("", "")
    return {"object": "list", "data": objects, "first_id": first, "last_id": last, "has_more": has_more}
