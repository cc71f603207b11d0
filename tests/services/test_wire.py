"""The wire format: every message is unpacked as it was packed."""

import msgpack
import pytest

from services.messages import (
    Commit,
    End,
    Exchange,
    Iteration,
    IterationResult,
    Logprobs,
    NewRequest,
    PromptLogprobs,
    Room,
)
from services.requests import FinishReason, SamplingParams, ThinkingBudget
from services.wire import pack, unpack

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


@pytest.mark.parametrize(
    "message",
    [
        Iteration("1:a", 3, {"r/0": 2, "r/1": 1}, [NewRequest("r/0", [1, 2], 2, SAMPLING)], {"r/0": [5]}, ["q/0"]),
        IterationResult("1:a", 3, {"r/0": 9}, {"r/0": Logprobs(-0.5, [(9, -0.5), (3, -2.0)])}, {"r/1": "no"}, 0.25),
        IterationResult("e", 1, {"r/0": 9}, {"r/0": Logprobs(-0.5, [], PromptLogprobs([-1.5], [2], [4], [-0.25]))}),
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
    back = unpack(type(message), pack(message))
    assert back == message


def test_the_batch_order_is_unchanged() -> None:
    scheduled = {f"r/{i}": 1 for i in (3, 1, 2)}
    assert list(unpack(Iteration, pack(Iteration("e", 0, scheduled))).scheduled) == ["r/3", "r/1", "r/2"]


def test_settings_of_an_older_build_lack_the_last_fields() -> None:
    """This is a request that waits in the pool while Orca is updated."""
    older = msgpack.packb(msgpack.unpackb(pack(SamplingParams(5, stop_token_ids=(7,))), strict_map_key=False)[:16])
    assert unpack(SamplingParams, older) == SamplingParams(5, stop_token_ids=(7,))


def test_an_older_build_s_message_lacks_the_last_fields() -> None:
    assert unpack(Logprobs, msgpack.packb([-0.5, [[9, -0.5]]])) == Logprobs(-0.5, [(9, -0.5)])
    assert unpack(SamplingParams, msgpack.packb([5])) == SamplingParams(5)
