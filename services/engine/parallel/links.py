"""Links: how a rank exchanges tensors with the other ranks of its engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.distributed import DistStoreError, PrefixStore, Store

from services.background import start_thread
from services.engine.parallel.layout import Layout
from services.engine.parallel.process_groups import PATIENCE, Group, connect, enter, meet

CPU = torch.device("cpu")
LEFT = "left"  # a key of the store


class Links:
    """The connections of one epoch of an engine.

    Each epoch has its own, so that a message of a former owner's iteration is never taken for one of this owner's: a
    rank that still waits for such a message gets an error when the first rank closes. All methods raise RuntimeError
    when another rank is gone. gloo misses one case: a rank that is about to send at that very moment waits until it is
    killed.

    On a GPU every method but `least` enqueues its work behind the layers and returns, so the device waits. After the
    host has waited for the device, `check` raises if another rank left before that.
    """

    def __init__(
        self,
        layout: Layout,
        host: str,
        meeting: str,
        epoch: str,
        obsolete: Callable[[], bool],
        device: torch.device,
    ) -> None:
        """Meets the other ranks in the store at `meeting`, and accepts them on `host`, an address of this machine.
        Tensors are on `device`.

        Raises StaleEpoch once `obsolete`, when some ranks will not come any more.
        """
        store = PrefixStore(epoch, enter(meeting))
        meet(store, layout.size, obsolete)
        rank, partition, self._tp = layout.rank, layout.partition, layout.tp
        self._engine = connect(PrefixStore("engine", store), rank, layout.size, host, CPU)

        def join(name: str, rank: int, size: int) -> Group:
            return connect(PrefixStore(name, store), rank, size, host, device)

        # each pair of stages is a group of its own, because NCCL runs the operations of a group one after another
        self._stage = join(f"stage {layout.stage}", partition.rank, partition.size) if self._tp > 1 else None
        self._before = None if layout.is_first else join(f"to {rank}", 1, 2)
        self._after = None if layout.is_last else join(f"to {rank + self._tp}", 0, 2)
        self._sending: tuple[Any, torch.Tensor] | None = None
        self._over = False
        self._watch = Watch(store, PrefixStore(epoch, enter(meeting)), self._abort) if device.type == "cuda" else None

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of what the ranks of this stage have; it may overwrite `part`.

        Added in the order of ranks, so that bits do not depend on the size of the batch."""
        if self._stage is None:
            return part
        first, *others = self.all_gather(part)
        total = first.to(torch.float32)
        for other in others:
            total += other
        return total

    def all_gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """What each of the ranks of this stage has [rows, columns], in their order; the shape is the same on all."""
        assert self._stage is not None, "a stage of one rank gathers nothing"
        together = part.new_empty(self._tp * len(part), part.shape[1])
        self._stage._allgather_base(together, part).wait()
        return list(together.split(len(part)))

    def send(self, x: torch.Tensor) -> None:
        """Send x to the next stage without waiting; x must not change any more."""
        assert self._after is not None, "no stage comes after the last one"
        if self._sending:
            self._sending[0].wait()
        self._sending = self._after.send([x], 1, 0), x

    def receive(self, x: torch.Tensor) -> None:
        """Receive into x from the stage before."""
        assert self._before is not None, "no stage comes before the first one"
        self._before.recv([x], 0, 0).wait()

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers."""
        numbers = list(torch.empty(self._engine.size(), 1, dtype=torch.int64))
        self._engine.allgather([numbers], [torch.tensor([number])]).wait()
        return min(int(n) for n in numbers)

    def check(self) -> None:
        """Make sure that the device had all that other ranks should have sent. Raises RuntimeError if one left."""
        if self._over:
            raise RuntimeError("another rank left while this one computed")

    def close(self) -> None:
        if self._watch:
            self._watch.leave()
        else:
            for group in self._device_groups():
                group.shutdown()
        self._engine.shutdown()
        del self._engine, self._stage, self._before, self._after, self._sending

    def _abort(self) -> None:
        """End the kernels that wait. The flag is set first, so that their results are not taken for an answer."""
        self._over = True
        groups = self._device_groups()
        with ThreadPoolExecutor(len(groups)) as at_once:  # an abort may wait for the kernels of the other groups
            list(at_once.map(lambda group: group.abort(), groups))

    def _device_groups(self) -> list[Group]:
        return [group for group in (self._stage, self._before, self._after) if group]


class Watch:
    """Aborts what a rank's device waits for when another rank leaves.

    A rank that waits on the host gets an error when a connection closes. One whose device waits gets none: NCCL's
    kernels run until their own process aborts them. So a rank that leaves tells the store, and every rank has a thread
    that waits for this.
    """

    def __init__(self, store: Store, own: Store, end: Callable[[], None]) -> None:
        """Calls `end` once, in a thread, when a rank has left or the store is gone. `own` is another connection to the
        same store for that thread, which blocks it."""
        self._store, self._own, self._end = store, own, end
        self._thread = start_thread(self._wait, "rank-watch")  # without it a device would wait for ever

    def leave(self) -> None:
        """Tell all ranks. `end` has run when this returns."""
        with contextlib.suppress(RuntimeError):  # the store is gone, which tells them too
            self._store.set(LEFT, "")
        self._thread.join()

    def _wait(self) -> None:
        while not _has_left(self._own):
            pass
        self._end()


def _has_left(store: Store) -> bool:
    """Wait until a rank has left; False if none has for a long time."""
    try:
        store.wait([LEFT], PATIENCE)
    except DistStoreError:  # timed out
        return False
    except RuntimeError:  # the store is gone, and with it the first rank
        return True
    return True
