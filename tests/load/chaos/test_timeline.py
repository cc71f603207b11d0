"""Histories that are put together from the files of several servers, made up and real."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.chaos.aof import Transaction
from load.chaos.pool_history import replay
from load.chaos.sentinels import Sentinels
from load.chaos.timeline import Archive, Segment, put_together, tick_of
from services.messages import Commit, Exchange, NewSequence, Room, Submission
from services.pool.pool import RequestPool
from services.pool.server.binaries import find_servers
from services.requests import SamplingParams
from tests.load.chaos.pool_file import Commands, acquire, append, claim, command, exchange, pack, submit

NEW = [server for server in find_servers() if server.version >= (7,)]


def script(tick: int, commands: Commands) -> Transaction:
    stamped = [command("HSET", "meta", "stamp", tick, "tick", tick), *commands]
    return Transaction(1, stamped)


COMMON = [
    script(1, submit("r")),
    script(2, acquire("s", "1:a")),
    script(3, exchange("s", 1, claim("s", "r/0"))),
    script(4, exchange("s", 2, append("r/0", 5))),
]
SNAPSHOT = [
    Transaction(1, [command("HMSET", "meta", "stamp", 4, "tick", 4)]),
    Transaction(2, [command("HMSET", "seq:r/0", "state", "running"), command("SET", "tok:r/0", pack(5))]),
]


def test_a_snapshot_is_continued_from_what_was_before_it() -> None:
    lost = script(5, exchange("s", 3, append("r/0", 6)))
    kept = script(6, exchange("s", 3, append("r/0", 7)))
    master, replica = Segment([], [*COMMON, lost]), Segment(SNAPSHOT, [kept])
    found = put_together([master, replica], replica)
    assert [tick_of(one) for one in found.transactions] == [1, 2, 3, 4, 6]
    assert [one.number for one in found.transactions] == [1, 2, 3, 4, 5]
    assert (found.lost, found.violations) == (1, [])
    assert replay(found.transactions).sequences["r/0"].tokens == [5, 7]
    assert [tick_of(one) for one in put_together([master, replica], master).transactions] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("wrong", [command("SET", "tok:r/0", pack(6)), command("HMSET", "seq:r/0", "state", "waiting")])
def test_a_snapshot_that_differs_from_what_was_before_it_is_a_violation(wrong: list[bytes]) -> None:
    replica = Segment([*SNAPSHOT, Transaction(3, [wrong])], [])
    (violation,) = put_together([Segment([], COMMON), replica], replica).violations
    assert violation.rule == "snapshot"


def test_a_history_with_a_gap_is_refused() -> None:
    replica = Segment(SNAPSHOT, [])
    with pytest.raises(ValueError, match="before the snapshot of tick 4 is in no file"):
        put_together([Segment([], COMMON[:3]), replica], replica)


@pytest.mark.skipif(not NEW, reason="no server of version 7 or later, whose files have a manifest")
async def test_the_files_of_real_servers_are_put_together(tmp_path: Path) -> None:
    """The master dies with a write that no replica has; then it comes back, and later it is the master again."""
    sentinels = Sentinels(tmp_path, NEW[0], 0.5)
    sentinels.start()
    pool = RequestPool(sentinels.url, "p", wait_replicas=1)
    try:
        with Archive(server.folder for server in sentinels.servers) as archive:
            await pool.submit(Submission("r", "g", [NewSequence("r/0", [1], SamplingParams(9))]))
            grant = await pool.acquire("s/0", "one", 60)
            await pool.exchange(Exchange("s/0", grant.epoch, 1, [], Room(8, 100, 16)))
            await pool.exchange(Exchange("s/0", grant.epoch, 2, [Commit("r/0", 0, [5])], Room(8, 100, 16)))
            first = sentinels.servers[0]
            for server in sentinels.servers[1:]:
                sentinels.ask(server, "REPLICAOF", "127.0.0.1", "1")
            careless = RequestPool(f"redis://{first.host}:{first.port}", "p")
            await careless.exchange(Exchange("s/0", grant.epoch, 3, [Commit("r/0", 1, [6])], Room(8, 100, 16)))
            await careless.close()
            second = sentinels.servers[1]
            for server, told in ((second, ("NO", "ONE")), (first, (second.host, str(second.port)))):
                sentinels.ask(server, "REPLICAOF", *told)
            sentinels.wait_until_online(second, 1)
            there = RequestPool(f"redis://{second.host}:{second.port}", "p", wait_replicas=1)
            await there.exchange(Exchange("s/0", grant.epoch, 3, [Commit("r/0", 1, [7])], Room(8, 100, 16)))
            await there.close()
            sentinels.wait_until_written()
        segments = {server.host: archive.segments(server.folder) for server in (first, second)}
    finally:
        await pool.close()
        sentinels.stop()
    every = [segment for one in segments.values() for segment in one]
    for server in (first, second):
        found = put_together(every, segments[server.host][-1])
        assert replay(found.transactions).sequences["r/0"].tokens == [5, 7]
        assert (found.lost, found.violations) == (1, [])
