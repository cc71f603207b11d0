"""The file that real servers write is read back: exchanges with the real pool, a kill, a cut tail."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from load.chaos import pool_history
from load.chaos.aof import Transaction, read_transactions
from services.errors import PoolUnavailable
from services.messages import Commit, End, Exchange, NewSequence, Room, Submission
from services.pool.pool import RequestPool
from services.pool.server.binaries import ServerBinary, find_servers
from services.pool.server.pool_server import PoolServer
from services.requests import FinishReason, SamplingParams
from services.seats import SeatGrant

ROOM = Room(8, 100, 16)
OVER = End(FinishReason.LENGTH)


def submission(request: str, choices: int) -> Submission:
    sequences = [NewSequence(f"{request}/{i}", [1, 2], SamplingParams(4)) for i in range(choices)]
    return Submission(request, "gateway", sequences)


async def exchange(pool: RequestPool, grant: SeatGrant, call: int, *commits: Commit) -> None:
    reply = await pool.exchange(Exchange("c/0", grant.epoch, call, list(commits), ROOM))
    assert reply.owned


@pytest.mark.parametrize("binary", find_servers(), ids=str)
async def test_a_real_pools_file_is_a_right_history(binary: ServerBinary, tmp_path: Path) -> None:
    server = PoolServer(binary, tmp_path, "strict")
    pool = RequestPool(await server.start())
    await pool.heartbeat("gateway", 1, {})
    await pool.submit(submission("r", 2))
    first = await pool.acquire("c/0", "one", lease=60)
    await exchange(pool, first, 1)
    await exchange(pool, first, 2, Commit("r/0", 0, [5, 6]), Commit("r/1", 0, [7]))
    os.kill(server.pid, signal.SIGKILL)
    second = await after_restart(pool, first.epoch)
    assert not (await pool.exchange(Exchange("c/0", first.epoch, 3, [Commit("r/0", 2, [9])], ROOM))).owned
    await exchange(pool, second, 1)
    await exchange(pool, second, 2, Commit("r/0", 2, [8], end=OVER))
    await pool.submit(submission("q", 1))
    await pool.cancel("q")
    await pool.cancel("r")
    await pool.release("c/0", second.epoch)
    await pool.close()
    await server.stop()

    history = pool_history.replay(read_transactions(tmp_path))
    history.check_finished()
    assert history.violations == []
    tokens = {id: sequence.tokens for id, sequence in history.sequences.items()}
    assert tokens == {"r/0": [5, 6, 8], "r/1": [7], "q/0": []}


async def after_restart(pool: RequestPool, dead_epoch: str) -> SeatGrant:
    while True:
        try:
            return await pool.acquire("c/0", "two", 60, dead_epoch)
        except PoolUnavailable:
            await asyncio.sleep(0.05)


def written(folder: Path, data: bytes) -> list[Transaction]:
    (folder / "appendonly.aof").write_bytes(data)
    return list(read_transactions(folder))


def resp(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in words)


def test_the_commands_between_multi_and_exec_are_one_transaction(tmp_path: Path) -> None:
    data = resp("SELECT", "0") + resp("SET", "a", "1\r\n2") + b"#TS:1700000000\r\n"
    data += resp("MULTI") + resp("SET", "b", "2") + resp("DEL", "a") + resp("EXEC")
    assert written(tmp_path, data) == [
        Transaction(1, [[b"SET", b"a", b"1\r\n2"]]),
        Transaction(2, [[b"SET", b"b", b"2"], [b"DEL", b"a"]], 1_700_000_000),
    ]


def test_a_cut_tail_never_happened(tmp_path: Path) -> None:
    first = resp("SET", "a", "1")
    whole = first + resp("MULTI") + resp("SET", "b", "22") + resp("EXEC")
    for cut in range(len(first), len(whole)):
        assert written(tmp_path, whole[:cut]) == [Transaction(1, [[b"SET", b"a", b"1"]])]
    assert len(written(tmp_path, whole)) == 2


def test_a_file_that_was_rewritten_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rewritten"):
        written(tmp_path, b"REDIS0010...")
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    (folder / "appendonly.aof.manifest").write_text("file appendonly.aof.2.base.rdb seq 2 type b\n")
    with pytest.raises(ValueError, match="rewritten"):
        list(read_transactions(tmp_path))
