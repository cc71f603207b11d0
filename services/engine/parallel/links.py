"""Links: what a rank sends to the other ranks of its engine, and gets from them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.distributed import PrefixStore

from services.engine.parallel.groups import Group, connect
from services.engine.parallel.layout import Layout
from services.engine.parallel.meeting import enter, meet
from services.engine.parallel.watch import Watch

CPU = torch.device("cpu")


class Links:
    """The connections of one epoch of an engine.

    Each epoch has its own, so that no message of a former owner's iteration is ever taken for one of this one's:
    whoever still waits for one gets an error when the first rank closes. All raise RuntimeError when another rank is
    gone; but gloo forgets a rank that was about to send in that very moment, which then waits until it is killed.

    On a GPU all but `least` is enqueued behind the layers and returns: it is the device that waits, and `check` that
    tells, once the host has waited for the device, whether the others were there until then.
    """

    def __init__(
        self,
        layout: Layout,
        host: str,
        meeting: str,
        epoch: str,
        obsolete: Callable[[], bool],
        device: torch.device,
        batch_invariant: bool,
    ) -> None:
        """Meets the others in the store at `meeting`, and accepts them on `host`, an address of this machine. Tensors
        are on `device`.

        Raises StaleEpoch once `obsolete`: not all of them will come any more.
        """
        store = PrefixStore(epoch, enter(meeting))
        meet(store, layout.size, obsolete)
        rank, shard, self._tp = layout.rank, layout.shard, layout.tp
        self._ordered = batch_invariant or device.type == "cpu"
        self._engine = connect(PrefixStore("engine", store), rank, layout.size, host, CPU)

        def join(name: str, rank: int, size: int) -> Group:
            return connect(PrefixStore(name, store), rank, size, host, device)

        # each pair of ranks is a group of its own: NCCL runs what one group is told one after the other
        self._stage = join(f"stage {layout.stage}", shard.rank, shard.size) if self._tp > 1 else None
        self._before = None if layout.is_first else join(f"to {rank}", 1, 2)
        self._after = None if layout.is_last else join(f"to {rank + self._tp}", 0, 2)
        self._sending: tuple[Any, torch.Tensor] | None = None
        self._over = False
        self._watch = Watch(store, PrefixStore(epoch, enter(meeting)), self._abort) if device.type == "cuda" else None

    def sum_up(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of what each rank of this stage has of it, which may be made in `part`.

        In the order of ranks, so that its bits do not depend on the size of the batch; where they may, as NCCL likes.
        """
        if self._stage is None:
            return part
        if not self._ordered:
            self._stage.allreduce([part]).wait()
            return part
        first, *others = self.collect(part)
        total = first.to(torch.float32)
        for other in others:
            total += other
        return total

    def collect(self, part: torch.Tensor) -> list[torch.Tensor]:
        """What each rank of this stage has [rows, columns], in the order of ranks; of one shape on all of them."""
        if self._stage is None:
            return [part]
        together = part.new_empty(self._tp * len(part), part.shape[1])
        self._stage._allgather_base(together, part).wait()
        return list(together.split(len(part)))

    def send(self, x: torch.Tensor) -> None:
        """To the next stage, while this one goes on; x is not to be changed any more."""
        assert self._after is not None, "no stage comes after the last one"
        if self._sending:
            self._sending[0].wait()
        self._sending = self._after.send([x], 1, 0), x

    def receive(self, x: torch.Tensor) -> None:
        """Into x, from the stage before."""
        assert self._before is not None, "no stage comes before the first one"
        self._before.recv([x], 0, 0).wait()

    def least(self, number: int) -> int:
        """Of all ranks' numbers."""
        numbers = list(torch.empty(self._engine.size(), 1, dtype=torch.int64))
        self._engine.allgather([numbers], [torch.tensor([number])]).wait()
        return min(int(n) for n in numbers)

    def check(self) -> None:
        """Raises RuntimeError if what the device computed may lack what another rank should have sent."""
        if self._over:
            raise RuntimeError("another rank left while this one computed")

    def close(self) -> None:
        if self._watch:
            self._watch.leave()
        else:
            for group in self._others():
                group.shutdown()
        self._engine.shutdown()
        del self._engine, self._stage, self._before, self._after, self._sending

    def _abort(self) -> None:
        """End the kernels that wait. Said before, so that nobody takes what they leave for an answer."""
        self._over = True
        groups = self._others()
        with ThreadPoolExecutor(len(groups)) as at_once:  # an abort may wait for the kernels of the other groups
            list(at_once.map(_end, groups))

    def _others(self) -> list[Group]:
        return [group for group in (self._stage, self._before, self._after) if group]


def _end(group: Group) -> None:
    group.abort()
