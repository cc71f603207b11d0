"""A rank that leaves, which NCCL does not report."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection

import pytest
from rank_processes import FORKS, HERE, PATIENCE
from torch.distributed import PrefixStore, TCPStore

from services.engine.parallel.links import Watch
from services.engine.parallel.process_groups import enter, open_meeting


@pytest.fixture
def store() -> TCPStore:
    return open_meeting(HERE)


@pytest.fixture
def meeting(store: TCPStore) -> str:
    return f"{HERE}:{store.port}"


class Rank:
    """`ended` is set once the watch has ended its waits, `times` counts how often."""

    def __init__(self, meeting: str, epoch: str = "e") -> None:
        self.ended, self.times = threading.Event(), 0
        self.watch = Watch(PrefixStore(epoch, enter(meeting)), PrefixStore(epoch, enter(meeting)), self._end)

    def _end(self) -> None:
        self.times += 1
        self.ended.set()


def test_the_first_that_leaves_ends_what_the_others_wait_for(meeting: str) -> None:
    ranks, next_epoch = [Rank(meeting) for _ in range(3)], Rank(meeting, "f")
    assert not any(rank.ended.is_set() for rank in ranks)
    ranks[1].watch.leave()
    assert ranks[1].times == 1
    assert all(rank.ended.wait(PATIENCE) for rank in ranks)
    for rank in ranks:
        rank.watch.leave()
    assert [rank.times for rank in ranks] == [1, 1, 1]
    assert not next_epoch.ended.is_set()
    next_epoch.watch.leave()


def test_a_rank_that_comes_late_is_told_too(meeting: str) -> None:
    Rank(meeting).watch.leave()
    assert Rank(meeting).ended.wait(PATIENCE)


def test_the_process_with_the_store_dies() -> None:
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=_keep_store, args=(theirs,), daemon=True)
    process.start()
    assert ours.poll(PATIENCE)
    rank = Rank(f"{HERE}:{ours.recv()}")
    process.kill()
    assert rank.ended.wait(PATIENCE)
    rank.watch.leave()


def _keep_store(pipe: Connection) -> None:
    store = open_meeting(HERE)
    pipe.send(store.port)
    pipe.recv()
