"""Messages with Anthropic's official client."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import anthropic
import httpx
import pytest
from stack import NAME, Stack

PATH = "/v1/messages"
MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=stack.url, api_key="none", max_retries=0) as client:
        yield client


def create(client: anthropic.Anthropic, *contents: str, max_tokens: int = 40, **fields: Any) -> anthropic.types.Message:
    """Turns of user and assistant alternate."""
    roles = ("user", "assistant")
    said: list[Any] = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return client.messages.create(model=NAME, messages=said, max_tokens=max_tokens, **fields)


def text_of(message: anthropic.types.Message) -> str:
    (block,) = message.content
    assert block.type == "text"
    return block.text


def test_create(client: anthropic.Anthropic) -> None:
    made = create(client, "né 🐳")
    assert made.id.startswith("msg_")
    assert (made.type, made.role, made.model) == ("message", "assistant", NAME)
    assert text_of(made) == "né 🐳"
    assert (made.stop_reason, made.stop_sequence) == ("end_turn", None)
    usage = made.usage
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (0, 0)
    assert usage.input_tokens == len(["<user>", *"né 🐳".encode(), "<eos>", "<assistant>"])
    assert usage.output_tokens == len(["<user>", *"né 🐳".encode(), "<eos>"])
    assert usage.service_tier == "standard"


def test_a_system_prompt_and_blocks(client: anthropic.Anthropic) -> None:
    cached: Any = {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}
    system: Any = [{"type": "text", "text": "a"}, cached]
    content: Any = [{"type": "text", "text": "c", "citations": None}, cached]
    by_blocks = client.messages.create(
        model=NAME, system=system, messages=[{"role": "user", "content": content}], max_tokens=40
    )
    assert text_of(by_blocks) == text_of(create(client, "cb", system="ab")) == "ab"


def test_the_history_accepts_an_answer(client: anthropic.Anthropic) -> None:
    first = create(client, "hi")
    with client.messages.stream(model=NAME, messages=[{"role": "user", "content": "hi"}], max_tokens=40) as stream:
        streamed = stream.get_final_message()
    for answer in (first, streamed):
        said: list[Any] = [{"role": "user", "content": "hi"}, answer.to_param(), {"role": "user", "content": "on"}]
        counted = client.messages.count_tokens(model=NAME, messages=said).input_tokens
        assert counted == len(["<user>", "h", "i", "<eos>", "<assistant>", "h", "i", "<eos>"]) + 5


def test_consecutive_messages_of_one_role_are_merged(client: anthropic.Anthropic) -> None:
    said: list[Any] = [{"role": "user", "content": content} for content in ("a", "b")]
    counted = client.messages.count_tokens(model=NAME, messages=said)
    assert counted == client.messages.count_tokens(model=NAME, messages=[{"role": "user", "content": "a\n\nb"}])


def test_a_last_message_of_the_assistant_is_continued(client: anthropic.Anthropic) -> None:
    """The engine repeats the prompt, which ends where the assistant's message does."""
    made = create(client, "hi", "hello", max_tokens=9)
    assert made.usage.input_tokens == len(["<user>", "h", "i", "<eos>", "<assistant>", "hello"])
    open_end = create(client, "hi", "hello ", max_tokens=9)
    assert open_end.usage.input_tokens == made.usage.input_tokens + 1
    nothing = create(client, "hi", "", max_tokens=9)
    assert nothing.usage.input_tokens == made.usage.input_tokens - 1


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"system": "x"},
        {"system": [{"type": "text", "text": "né 🐳"}], "thinking": {"type": "disabled"}, "tools": []},
    ],
)
@pytest.mark.parametrize("contents", [("né 🐳",), ("a", "hello world", "b"), ("a", "hello wor")])
def test_count_tokens(client: anthropic.Anthropic, asked: dict[str, Any], contents: tuple[str, ...]) -> None:
    roles = ("user", "assistant")
    said: list[Any] = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    usage = client.messages.create(model=NAME, messages=said, max_tokens=1, **asked).usage
    counted = client.messages.count_tokens(model=NAME, messages=said, **asked).input_tokens
    assert counted == usage.input_tokens


def test_a_stream(client: anthropic.Anthropic) -> None:
    raw = client.messages.create(
        model=NAME, messages=[{"role": "user", "content": "né 🐳 漢"}], max_tokens=40, stream=True
    )
    kinds, text = [], ""
    for event in raw:
        kinds.append(event.type)
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            text += event.delta.text
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert text == "né 🐳 漢"


def test_the_client_s_own_accumulation(client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model=NAME, messages=[{"role": "user", "content": "one STOP two"}], max_tokens=40, stop_sequences=["STOP"]
    ) as stream:
        said = "".join(stream.text_stream)
        made = stream.get_final_message()
    assert said == text_of(made) == "one "
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", "STOP")
    whole = create(client, "one STOP two", stop_sequences=["STOP"])
    assert made.usage.output_tokens == whole.usage.output_tokens


def test_the_same_seed_gives_the_same_message(client: anthropic.Anthropic) -> None:
    asked = {"extra_body": {"seed": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "metadata": {"user_id": None}}}
    assert text_of(create(client, "hi", **asked)) == text_of(create(client, "hi", **asked))


def test_models(client: anthropic.Anthropic) -> None:
    (model,) = client.models.list()
    assert (model.id, model.display_name, model.type, model.lifecycle) == (NAME, NAME, "model", "active")
    assert model.created_at <= datetime.now(UTC)
    assert client.models.retrieve(NAME) == model
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.models.retrieve("claude-17")
    assert missing.value.type == "not_found_error"


def test_a_plain_stream_is_framed_as_anthropic_s(http: httpx.Client) -> None:
    body = {"model": NAME, "messages": MESSAGES, "max_tokens": 9, "stream": True}
    answer = http.post(PATH, json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *blocks, rest = answer.text.split("\n\n")
    assert rest == ""
    assert all([line.partition(":")[0] for line in block.split("\n")] == ["event", "data"] for block in blocks)
    assert [block.split("\n")[0] for block in blocks[:3]] == [
        "event: message_start",
        "event: content_block_start",
        "event: ping",
    ]
