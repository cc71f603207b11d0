"""For any combination of fields, a stream contains what the whole answer contains, also if it is cut and resumed."""

from __future__ import annotations

from typing import Any

import httpx
from frames import told
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sse_client import DONE, RESUMABLE, read, rest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXTS = st.sampled_from(["hi<user>ab.", "hello world", "né 🐳 漢", "one STOP two", "hi<eos>no", "STOSTOP"])
ROLES = st.sampled_from(["user", "assistant", "system"])
USAGE = {"stream_options": {"include_usage": True}}

BOTH: dict[str, Any] = {
    "n": st.integers(1, 3),
    "stop": st.sampled_from(["STOP", ["TOP", "STO"], "r>a", "漢", ["ab", "."]]),
    "stop_token_ids": st.sampled_from([[5], [64, 65]]),
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "ignore_eos": st.booleans(),
    "return_token_ids": st.booleans(),
    "truncate_prompt_tokens": st.sampled_from([-1, 1, 2, 5]),
    "truncation_side": st.sampled_from(["left", "right"]),
    "bad_words": st.sampled_from([["hello"], [" the", "a"]]),
    "allowed_token_ids": st.sampled_from([[1, 2], list(range(270))]),
}
COMPLETION: dict[str, Any] = {
    "echo": st.booleans(),
    "logprobs": st.integers(0, 3),
    "add_special_tokens": st.booleans(),
}
CONVERSATION: dict[str, Any] = {
    "logprobs": st.booleans(),
    "continue_final_message": st.booleans(),
    "add_special_tokens": st.booleans(),
}
MESSAGES = st.lists(st.fixed_dictionaries({"role": ROLES, "content": TEXTS}), min_size=1, max_size=3)
PROMPTS = TEXTS | st.lists(TEXTS, min_size=2, max_size=2) | st.lists(st.integers(0, 270), min_size=1, max_size=4)
ASKED = st.one_of(
    st.fixed_dictionaries({"prompt": PROMPTS, "max_tokens": st.integers(0, 12)}, optional=BOTH | COMPLETION),
    st.fixed_dictionaries({"messages": MESSAGES, "max_tokens": st.integers(1, 12)}, optional=BOTH | CONVERSATION),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=ASKED, place=st.integers(0, 1000))
def test_a_stream_cut_anywhere_equals_the_whole_answer(
    http: httpx.Client, other: httpx.Client, asked: dict[str, Any], place: int
) -> None:
    path = COMPLETIONS if "prompt" in asked else CHAT
    answered = http.post(path, json=asked)
    assert answered.status_code == 200, answered.text
    whole = answered.json()
    events = read(http.post(path, json=asked | {"stream": True} | USAGE, headers=RESUMABLE))
    assert events[-1] == DONE
    cut = 1 + place % (
        len(events) - 1
    )  # not drawn from their number: how many tokens share an event is up to the clock
    again = events[:cut] + rest(other, events[cut - 1].id or "")
    assert len({event.id for event in again}) == len(again)
    for stream in (events, again):
        chunks = [event.json() for event in stream[:-1]]
        for choice in whole["choices"]:
            assert told(chunks, choice["index"]) == told([{"choices": [as_delta(choice)]}], choice["index"])
    assert counted(events[-2].json()["usage"]) == counted(whole["usage"])


def as_delta(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice of a whole answer in the format of a stream."""
    return choice | {"delta": choice["message"]} if "message" in choice else choice


def counted(usage: dict[str, Any]) -> dict[str, Any]:
    """The token counts that do not depend on the cache."""
    return {name: count for name, count in usage.items() if name.endswith("_tokens")}
