"""The wire format: every message is unpacked as it was packed. Different builds can read one in a pool or on disk with
one field more and with one less."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answer.plan import AnswerKind, Plan
from gateway.batches.folder import BatchRecord, Counts, Final, Progress
from services.errors import Unreadable
from services.messages import (
    Claim,
    Commit,
    End,
    EngineFigures,
    Exchange,
    Iteration,
    IterationResult,
    Logprobs,
    NewRequest,
    PromptLogprobs,
    Room,
)
from services.pool import packing
from services.requests import FinishReason, SamplingParams, ThinkingBudget
from services.wire import pack, unpack

SCORES = PromptLogprobs([-1.5], [2], [4], [-0.25])
SAMPLING = SamplingParams(
    5,
    seed=2**64 - 1,
    stop=("ab", "é"),
    stop_token_ids=(7,),
    logit_bias={4: 1.5},
    logprobs=2,
    bad_words=((1, 2), (3,)),
    thinking_token_budget=ThinkingBudget(3, "<think>", "</think>", (7, 9), True),
)
MESSAGES = [
    SamplingParams(5, stop=("a",), logit_bias={4: 1.5}, bad_words=((1, 2),), prompt_logprobs=1),
    SCORES,
    Logprobs(-0.5, [(9, -0.5)], SCORES),
    End(FinishReason.STOP, "é", 2, None, 3),
    EngineFigures("m", 512, 25, 16, 300, "null"),
    Plan(AnswerKind.CHAT, 1, "d", 1, 1, 3, 5, stop=("a",), prompts=[[1, 2]], texts=["a"], silent=True),
    BatchRecord("batch_1", "t", "/v1/completions", "file-1", "24h", 1, 2, "m", {"a": "b"}, 3600),
    Counts(3, 2, 1),
    Progress(1, Counts(3, 2, 1), 4),
    Final("completed", 5, Progress(1, Counts(3)), "file-1", None, [{"code": "x"}]),
    SAMPLING,
]


@pytest.mark.parametrize(
    "message",
    [
        Iteration("1:a", 3, {"r/0": 2, "r/1": 1}, [NewRequest("r/0", [1, 2], 2, SAMPLING)], {"r/0": [5]}, ["q/0"]),
        IterationResult("1:a", 3, {"r/0": 9}, {"r/0": Logprobs(-0.5, [(9, -0.5), (3, -2.0)])}, {"r/1": "no"}, 0.25),
        IterationResult("e", 1, {"r/0": 9}, {"r/0": Logprobs(-0.5, [], SCORES)}),
        Exchange(
            "c/0",
            "1:a",
            8,
            [Commit("r/0", 4, [1, 2], None, End(FinishReason.STOP, "é", 2)), Commit("r/1", 0, [])],
            Room(3, 100, 16),
            counters={"orca:iterations": 1.0},
        ),
    ],
)
def test_messages_are_unchanged(message: object) -> None:
    assert unpack(type(message), pack(message)) == message


def test_the_batch_order_is_unchanged() -> None:
    scheduled = {f"r/{i}": 1 for i in (3, 1, 2)}
    assert list(unpack(Iteration, pack(Iteration("e", 0, scheduled))).scheduled) == ["r/3", "r/1", "r/2"]


def _values(message: object) -> list[Any]:
    values: list[Any] = msgpack.unpackb(pack(message), strict_map_key=False)
    return values


def _required(kind: Any) -> int:
    missing = dataclasses.MISSING
    return sum(f.default is missing and f.default_factory is missing for f in dataclasses.fields(kind))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_of_a_later_build_has_more_fields(message: object) -> None:
    later = [*_values(message), {"new": [1, None]}, "more"]
    assert unpack(type(message), msgpack.packb(later)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_of_an_earlier_build_has_fewer_fields(message: Any) -> None:
    kind, values = type(message), _values(message)
    names = [field.name for field in dataclasses.fields(kind)]
    for known in range(_required(kind), len(names)):
        given = {name: getattr(message, name) for name in names[:known]}
        assert unpack(kind, msgpack.packb(values[:known])) == kind(**given)


def test_nested_messages_may_have_more_fields() -> None:
    values = _values(Logprobs(-0.5, [(9, -0.5)], SCORES))
    values[2].append("new")
    assert unpack(Logprobs, msgpack.packb(values)).prompt == SCORES


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@given(st.binary(max_size=40))
def test_unreadable_data_is_an_error(message: object, data: bytes) -> None:
    with contextlib.suppress(Unreadable):
        unpack(type(message), data)


def _by_name(**values: Any) -> list[Any]:
    return [item for name, value in values.items() for item in (name.encode(), value)]


def _claim(sampling: bytes) -> list[Any]:
    return _by_name(
        id=b"r/0",
        rank=b"5",
        prompt=packing.pack_tokens([1, 2]),
        output=b"",
        sampling=sampling,
        strikes=0,
        priority=0,
        ttft=0,
        waited=0,
        tenant=b"t",
        choice=0,
        max_new_tokens=5,
        trace=b"",
        remember=0,
        before=[],
    )


def test_an_unreadable_claim_fails_alone() -> None:
    known = SamplingParams(5)
    claims = [_claim(pack(known)), _claim(b"\x93\x01"), _claim(pack(known))]
    reply = _by_name(claims=claims, cancelled=[], foreign=[], have=[], lost=0, surplus=0, forgotten=[])
    read: list[Claim] = packing.read_exchange(reply).claims
    assert [claim.unreadable is None for claim in read] == [True, False, True]
    assert read[0].sampling == known


def test_an_unreadable_event_ends_only_its_sequence() -> None:
    newer = msgpack.packb(["a reason of a later build"])
    entry = packing.pack(
        [["a/0", "b/0"], [0, 3], [1, 1], packing.pack_tokens([7, 8]), [1, False, newer, 2, False, pack(MESSAGES[3])]]
    )
    events = packing.read_events(entry)
    assert [(e.id, e.index, e.token) for e in events] == [
        ("a/0", 0, 7),
        ("a/0", 1, None),
        ("b/0", 3, 8),
        ("b/0", 4, None),
    ]
    assert events[1].end is not None
    assert events[1].end.reason is FinishReason.ERROR
    assert events[3].end == MESSAGES[3]


def test_an_unreadable_snapshot_is_an_end() -> None:
    snapshot = packing.read_snapshot(
        "a/0", _by_name(prompt_tokens=2, index=0, tokens=packing.pack_tokens([7]), logprobs=[b"\xc1"], end=b"")
    )
    assert snapshot.end is not None
    assert snapshot.end.reason is FinishReason.ERROR
