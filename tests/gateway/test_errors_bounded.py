"""A body with many wrong values costs no more than a body with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from gateway.errors import ApiError
from gateway.http.body import validate
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.responses import ResponseRequest
from gateway.schemas.strict import MAX_ITEMS
from gateway.schemas.tokenize import DetokenizeRequest

BODIES: list[tuple[type[BaseModel], Callable[[int], dict[str, Any]]]] = [
    (ResponseRequest, lambda count: {"input": [1] * count}),
    (ResponseRequest, lambda count: {"input": [{}] * count}),
    (ChatRequest, lambda count: {"messages": [1] * count}),
    (ChatRequest, lambda count: {"messages": [{"role": "user", "content": [1] * count}]}),
    (CompletionRequest, lambda count: {"prompt": "a"} | {f"field {number}": 1 for number in range(count - 1)}),
    (CompletionRequest, lambda count: {"prompt": "a", "stop_token_ids": ["x"] * count}),
]


@pytest.mark.parametrize(("model", "body"), BODIES)
def test_a_long_list_is_refused_before_its_items_are_read(
    model: type[BaseModel], body: Callable[[int], dict[str, Any]]
) -> None:
    with pytest.raises(ApiError, match=f"at most {MAX_ITEMS} are accepted"):
        validate(model, body(MAX_ITEMS + 1))
    with pytest.raises(ValidationError) as wrong:
        model.model_validate(body(MAX_ITEMS))
    assert wrong.value.error_count() <= 2 * MAX_ITEMS


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (CompletionRequest, {"prompt": ["x", *[-1] * 50_000]}),
        (CompletionRequest, {"prompt": "a", "allowed_token_ids": ["x"] * 50_000}),
        (CompletionRequest, {"prompt": "a", "allowed_token_ids": [-1] * 50_000}),
        (DetokenizeRequest, {"tokens": [-1] * 50_000}),
    ],
)
def test_token_ids_are_read_up_to_the_first_that_is_wrong(model: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as wrong:
        model.model_validate(body)
    assert wrong.value.error_count() == 1
