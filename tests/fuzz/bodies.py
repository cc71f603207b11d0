"""For each route that takes JSON, a small body that is answered with 200: what random requests are made from."""

from __future__ import annotations

from typing import Any

MESSAGES = [{"role": "user", "content": "hello world"}]

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello", "max_tokens": 3},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/responses": {"input": "hello", "max_output_tokens": 16},
    "/v1/responses/input_tokens": {"input": "hello"},
    "/v1/messages": {"model": "tiny", "messages": MESSAGES, "max_tokens": 3},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": MESSAGES},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1, 2, 3]},
}
