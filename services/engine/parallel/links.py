"""Links: what a rank sends to the other ranks of its engine, and gets from them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, Store, TCPStore

from services.engine.parallel.layout import Layout
from services.errors import StaleEpoch

PATIENCE = timedelta(hours=1)  # with one message; who judges sooner whether an engine is stuck is the loop
LOOK = 0.002  # seconds between looks at who has come


class Links:
    """The connections of one epoch of an engine.

    Each epoch has its own, so that no message of a former owner's iteration is ever taken for one of this one's:
    whoever still waits for one gets an error when the first rank closes. All raise RuntimeError when another rank is
    gone.
    """

    def __init__(self, layout: Layout, host: str, meeting: str, epoch: str, obsolete: Callable[[], bool]) -> None:
        """Meets the others in the store at `meeting`, and accepts them on `host`, an address of this machine.

        Raises StaleEpoch once `obsolete`: not all of them will come any more.
        """
        address, _, port = meeting.rpartition(":")
        store = PrefixStore(epoch, TCPStore(address, int(port), is_master=False, wait_for_workers=False))
        _meet(store, layout.size, obsolete)
        self._rank, self._tp = layout.rank, layout.tp
        self._engine = _connect(PrefixStore("engine", store), layout.rank, layout.size, host)
        shard, stage = layout.shard, PrefixStore(f"stage {layout.stage}", store)
        self._stage = _connect(stage, shard.rank, shard.size, host)
        self._sending: tuple[Any, torch.Tensor] | None = None

    def sum_up(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of what each rank of this stage has of it, in the order of ranks: an all-reduce whose bits do not
        depend on the size of the batch."""
        first, *others = self.collect(part)
        for other in others:
            first += other
        return first

    def collect(self, part: torch.Tensor) -> list[torch.Tensor]:
        """What each rank of this stage has, in the order of ranks; of one shape on all of them."""
        if self._tp == 1:
            return [part]
        parts = list(torch.empty(self._tp, *part.shape, dtype=part.dtype))
        self._stage.allgather([parts], [part]).wait()
        return parts

    def send(self, x: torch.Tensor) -> None:
        """To the next stage, while this one goes on; x is not to be changed any more."""
        if self._sending:
            self._sending[0].wait()
        self._sending = self._engine.send([x], self._rank + self._tp, 0), x

    def receive(self, x: torch.Tensor) -> None:
        """Into x, from the stage before."""
        self._engine.recv([x], self._rank - self._tp, 0).wait()

    def least(self, number: int) -> int:
        """Of all ranks' numbers."""
        numbers = list(torch.empty(self._engine.size(), 1, dtype=torch.int64))
        self._engine.allgather([numbers], [torch.tensor([number])]).wait()
        return min(int(n) for n in numbers)

    def close(self) -> None:
        for group in (self._engine, self._stage):
            group.shutdown()
        del self._engine, self._stage, self._sending


def open_meeting(host: str) -> TCPStore:
    """A store on `host` where ranks can meet, as long as it is kept."""
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port = listener.getsockname()[1]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def _meet(store: Store, size: int, obsolete: Callable[[], bool]) -> None:
    """Wait until all are there: connecting to one that does not come could not be given up."""
    came = store.add("came", 1)
    while came < size:
        if obsolete():
            raise StaleEpoch("another owner came before all ranks did")
        time.sleep(LOOK)
        came = store.add("came", 0)


def _connect(store: Store, rank: int, size: int, host: str) -> ProcessGroupGloo:
    options = ProcessGroupGloo._Options()
    options._timeout = PATIENCE
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    return ProcessGroupGloo(store, rank, size, options)
