"""A body that is wrong in each of its values costs no more than one that is wrong once."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.responses import ResponseRequest

MOST_ERRORS = 10_000  # a list may have 4,096 items, each with an error for each of its variants


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ResponseRequest, {"input": [1] * 50_000}),
        (ResponseRequest, {"input": [{}] * 50_000}),
        (ChatRequest, {"messages": [1] * 50_000}),
        (CompletionRequest, {"prompt": "a"} | {f"field {number}": 1 for number in range(50_000)}),
        (CompletionRequest, {"prompt": "a", "stop_token_ids": ["x"] * 50_000}),
    ],
    ids=["response items", "empty response items", "messages", "unknown fields", "token ids"],
)
def test_errors_of_a_body_are_bounded(model: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as wrong:
        model.model_validate(body)
    assert wrong.value.error_count() <= MOST_ERRORS
