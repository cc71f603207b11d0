"""The chaos run of shards: its requests are judged by the history of their own shard."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.chaos.grounds import ChaosOptions, Injection
from load.chaos.history import Delivery, Done, End, Submit
from load.chaos.run import run
from load.chaos.shards import Shards, shards_of
from load.chaos.streams import Outcome
from load.trace import HttpRequest

ID = f"cmpl-{'0' * 32}"
RECORDS = [
    Submit(0, 1.0, 1),
    Submit(1, 1.0, 1),
    Submit(2, 1.0, 1),
    Delivery(1, 2.0, f"{ID}-1", 0, 0, 5),
    Delivery(0, 2.0, ID, 0, 0, 5),
    End(1, 3.0, f"{ID}-1", 0, 1, "stop"),
    Done(2, 3.0, "refused"),
]


def test_requests_are_divided_by_their_ids() -> None:
    assert shards_of(RECORDS) == {0: 0, 1: 1}


def test_the_gaps_around_a_fault_are_told_by_shard() -> None:
    outcomes = [
        Outcome(HttpRequest("/", {}, "a"), 0, 0.0, arrivals=[1.0, 1.5, 5.5, 9.0]),
        Outcome(HttpRequest("/", {}, "b"), 1, 0.0, arrivals=[1.0, 3.0, 4.0]),
    ]
    injections = [Injection("shard 0 stopped", 2.0, ended=5.0), Injection("shard 1 killed", 7.0, "no open stream")]
    told = Shards(ChaosOptions(Path())).table(injections, outcomes, RECORDS).splitlines()
    assert told[2:] == ["| shard 0 stopped | 4.0 | 2.0 |"]


@pytest.mark.chaos
async def test_nothing_is_lost_when_the_server_of_a_shard_dies(tmp_path: Path) -> None:
    options = ChaosOptions(tmp_path, seconds=30.0, every=6.0, streams=8)
    assert await run(Shards(options))
