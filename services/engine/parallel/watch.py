"""Watch: ends what a rank waits for on its device when the first rank leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from torch.distributed import DistStoreError, Store

from services.background import start_thread
from services.engine.parallel.groups import PATIENCE

LEFT = "left"


class Watch:
    """A rank that waits on the host gets an error when a connection closes. One whose device waits gets none: NCCL's
    kernels run until their own process aborts them. So whoever leaves says so, and every rank has a thread that hears
    it."""

    def __init__(self, store: Store, own: Store, end: Callable[[], None]) -> None:
        """Calls `end` in a thread, once, when a rank has left or the store is gone. `own` is another connection to the
        place of `store`, for that thread alone: it waits there."""
        self._store, self._own, self._end = store, own, end
        self._thread = start_thread(self._wait, "rank-watch")  # a device that nobody frees waits for ever

    def leave(self) -> None:
        """Tell all. `end` has run when this returns."""
        with contextlib.suppress(RuntimeError):  # the store is gone, which tells them too
            self._store.set(LEFT, "")
        self._thread.join()

    def _wait(self) -> None:
        while not _has_left(self._own):
            pass
        self._end()


def _has_left(store: Store) -> bool:
    """Wait for it; False when nobody has for long."""
    try:
        store.wait([LEFT], PATIENCE)
    except DistStoreError:  # it took too long
        return False
    except RuntimeError:  # the store is gone, and with it the first rank
        return True
    return True
