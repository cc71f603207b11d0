"""Bodies that are almost right: one place of a good one changed, or its bytes damaged.

Each is answered with JSON and a status below 500, and an error has OpenAI's or Anthropic's shape.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx
import orjson
import pytest
from bodies import BODIES
from effort import effort
from hypothesis import given
from hypothesis import strategies as st

strange = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1, 1e308, -0.0, 5e-324]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(
        ["\0", "\u202e", "\ufeff", "a" * 5000, "🤖" * 300, "<user>", "{{ messages }}", "%s%n", "../../etc"]
    ),
    st.recursive(
        st.none() | st.integers(0, 9) | st.text(max_size=3),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=8,
    ),
    st.integers(1, 3000).map(lambda length: [7] * length),
)
FIELDS = [
    "best_of", "n", "stop", "logprobs", "top_logprobs", "logit_bias", "seed", "temperature", "top_p", "top_k", "min_p",
    "stream", "stream_options", "echo", "max_tokens", "min_tokens", "ignore_eos", "bad_words", "allowed_token_ids",
    "prompt_logprobs", "truncate_prompt_tokens", "priority", "user", "metadata", "tools", "store", "background",
    "previous_response_id", "instructions", "system", "stop_sequences", "return_token_ids", "add_special_tokens",
    "chat_template_kwargs", "response_format", "n_probs", "repetition_penalty", "frequency_penalty", "presence_penalty",
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "text", "output_config",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a value can be changed: the way to each part of it."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


@st.composite
def changed(draw: st.DrawFn, body: dict[str, Any]) -> bytes:
    body = copy.deepcopy(body)
    for field in draw(st.lists(st.sampled_from(FIELDS), max_size=2)):
        body[field] = draw(strange)
    *path, last = draw(st.sampled_from(places(body)[1:]))
    within: Any = body
    for key in path:
        within = within[key]
    if draw(st.booleans()):
        within[last] = draw(strange)
    elif draw(st.booleans()):
        within[last] = [within[last]] * draw(st.integers(0, 4))
    return json.dumps(body).encode()  # integers of any size


@st.composite
def damaged(draw: st.DrawFn, body: dict[str, Any]) -> bytes:
    """Bytes of the body cut, repeated, overwritten or put in."""
    data = bytearray(orjson.dumps(body))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(start + 10, len(data))))
        data[start:end] = draw(
            st.binary(max_size=4) | st.sampled_from([b"", b'"', b"\\ud800", b"[" * 200, b"1e400", b"\xff", b"\0"])
        )
    return bytes(data)


@pytest.mark.parametrize("path", BODIES)
def test_a_body_that_is_almost_right(http: httpx.Client, path: str) -> None:
    @effort(150)
    @given(changed(BODIES[path]) | damaged(BODIES[path]))
    def send(body: bytes) -> None:
        answer = http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code < 500, answer.text
        if answer.status_code != 200:
            assert answer.json()["error"]["message"]

    send()
