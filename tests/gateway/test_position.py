"""A stream that is cut at any event resumes after it: both parts together are the whole stream, once."""

from __future__ import annotations

from typing import Any

import pytest
from frames import PIECES, REQUEST, answer, events_of, read, told
from hypothesis import given
from hypothesis import strategies as st

from gateway.answer.plan import AnswerKind
from gateway.errors import ApiError
from gateway.http.headers import Position
from gateway.model import ServedModel
from gateway.openai.events import ChunkWriter, check_position
from services.messages import TokenEvent

TEXT_FIELDS = ("include_stop", "skip_special_tokens")


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    names = ("include_usage", "continuous_usage", "return_token_ids", "with_logprobs", *TEXT_FIELDS)
    flags: dict[str, Any] = {name: draw(st.booleans()) for name in names}
    kind = draw(st.sampled_from([AnswerKind.CHAT, AnswerKind.COMPLETION]))
    if kind is AnswerKind.COMPLETION:
        flags |= {
            "echo": draw(st.booleans()),
            "silent": draw(st.booleans()),
            "texts": [draw(st.sampled_from(["", "é"]))],
        }
    return flags | {"kind": kind}


TEXTS = st.lists(
    st.lists(st.sampled_from([*PIECES, "<user>", "<eos>"]), min_size=1, max_size=6).map("".join), min_size=1, max_size=3
)


def events(model: ServedModel, texts: list[str], data: st.DataObject, fields: dict[str, Any]) -> list[TokenEvent]:
    """The events of all choices, those of each choice in order."""
    queues = [
        events_of(
            model,
            choice,
            model.tokenizer.encode("x" if fields.get("silent") else text),
            fields["with_logprobs"],
            **{name: fields[name] for name in TEXT_FIELDS},
        )
        for choice, text in enumerate(texts)
    ]
    order = data.draw(st.permutations([choice for choice, queue in enumerate(queues) for _ in queue]))
    return [queues[choice].pop(0) for choice in order]


def written(writer: ChunkWriter, events: list[TokenEvent], data: st.DataObject | None = None) -> list[bytes]:
    """The frames of single events, or of groups as drawn."""
    frames = b""
    while events:
        size = data.draw(st.integers(1, len(events))) if data else 1
        frames, events = frames + writer.write(events[:size]), events[size:]
    assert writer.done
    return [frame + b"\n\n" for frame in frames.split(b"\n\n")[:-1]]


def resumed(model: ServedModel, id: bytes, choices: int, fields: dict[str, Any]) -> ChunkWriter:
    position = Position.parse(id.decode())
    made = answer(model, choices, position.counts, **fields)
    check_position(position, made.plan)
    return ChunkWriter(made, len(position.counts), with_ids=True)


def id_of(frame: bytes) -> bytes:
    return frame.partition(b"\n")[0].removeprefix(b"id: ")


@given(texts=TEXTS, fields=options(), data=st.data())
def test_single_events_give_the_same_bytes(
    model: ServedModel, texts: list[str], fields: dict[str, Any], data: st.DataObject
) -> None:
    all_events = events(model, texts, data, fields)
    whole = written(ChunkWriter(answer(model, len(texts), **fields), with_ids=True), all_events)
    assert len({id_of(frame) for frame in whole}) == len(whole)
    cut = data.draw(st.integers(0, len(whole) - 2))  # [DONE] has no id
    rest = written(resumed(model, id_of(whole[cut]), len(texts), fields), all_events)
    assert rest == whole[cut + 1 :]


@given(texts=TEXTS, fields=options(), data=st.data())
def test_each_event_is_sent_once_in_any_grouping(
    model: ServedModel, texts: list[str], fields: dict[str, Any], data: st.DataObject
) -> None:
    at_once = ChunkWriter(answer(model, len(texts), **fields), with_ids=True).write(events(model, texts, data, fields))
    first = written(
        ChunkWriter(answer(model, len(texts), **fields), with_ids=True), events(model, texts, data, fields), data
    )
    cut = data.draw(st.integers(0, len(first) - 2))
    again = resumed(model, id_of(first[cut]), len(texts), fields)
    joined = first[: cut + 1] + written(again, events(model, texts, data, fields), data)
    (ids, chunks), (ids_at_once, chunks_at_once) = read(b"".join(joined)), read(at_once)
    assert len(set(ids)) == len(ids)
    assert ids[-1] == ids_at_once[-1]
    for choice in range(len(texts)):
        assert told(chunks, choice) == told(chunks_at_once, choice)
    assert [c["usage"] for c in chunks if not c["choices"]] == [c["usage"] for c in chunks_at_once if not c["choices"]]


@pytest.mark.parametrize(
    "id",
    [
        "x",
        "cmpl-12:1",
        REQUEST,
        f"{REQUEST}:",
        f"{REQUEST}:1.",
        f"{REQUEST}:-1",
        f"{REQUEST}:1,2",
        f"{REQUEST}:1 ",
        f"{REQUEST}:²",
        f"{REQUEST}:{'1' * 30}",
        f"{REQUEST}:1:2",
    ],
)
def test_an_invalid_id_is_refused(id: str) -> None:
    with pytest.raises(ApiError, match="not the id of an event"):
        Position.parse(id)


@pytest.mark.parametrize(
    ("indices", "kind", "text"),
    [
        ("3", AnswerKind.CHAT, "counts 1 choices, the request has 2"),
        ("0", AnswerKind.COMPLETION, "counts 1 choices, the request has 2"),
        ("1.2.3", AnswerKind.CHAT, "counts 3 choices, the request has 2"),
        ("101.0", AnswerKind.CHAT, "counts 101 events of choice 0, there can be 100 at most"),
        ("0.102", AnswerKind.CHAT, "counts 102 events of choice 1, there can be 101 at most"),
    ],
)
def test_a_position_that_no_event_has_is_refused(model: ServedModel, indices: str, kind: AnswerKind, text: str) -> None:
    with pytest.raises(ApiError, match=text):
        check_position(Position.parse(f"{REQUEST}:{indices}"), answer(model, 2, kind=kind).plan)


def test_a_position_after_the_end_is_refused_when_the_end_is_known(model: ServedModel) -> None:
    all_events = events_of(model, 0, model.tokenizer.encode("xyz"))
    writer = resumed(model, f"{REQUEST}:6".encode(), 1, {})
    with pytest.raises(ApiError, match="counts 6 events of choice 0, there are 4"):
        writer.write(all_events)


def test_a_position_that_the_tokens_have_not_reached_waits(model: ServedModel) -> None:
    """The pool lost tokens that the client has received; they arrive again and are not sent again."""
    tokens = model.tokenizer.encode("xyz")
    writer = resumed(model, f"{REQUEST}:2".encode(), 1, {})
    first, second, *rest = events_of(model, 0, tokens)
    assert writer.write([first]) == b""
    assert writer.write([second]) == b""
    ids, chunks = read(writer.write(rest))
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == ["z"]
    assert ids == [f"{REQUEST}:4"]
