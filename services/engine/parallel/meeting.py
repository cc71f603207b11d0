"""Where the ranks of an engine meet: a store that the first one's process keeps."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from torch.distributed import Store, TCPStore

from services.errors import StaleEpoch

LOOK = 0.002  # seconds between looks at who has come


def open_meeting(host: str) -> TCPStore:
    """A store on `host` where ranks can meet, as long as it is kept."""
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port = listener.getsockname()[1]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def enter(meeting: str) -> TCPStore:
    """A connection of its own to the store at `meeting`, which is `host:port`."""
    address, _, port = meeting.rpartition(":")
    return TCPStore(address, int(port), is_master=False, wait_for_workers=False)


def meet(store: Store, size: int, obsolete: Callable[[], bool]) -> None:
    """Wait until all are there: connecting to one that does not come could not be given up. Raises StaleEpoch."""
    came = store.add("came", 1)
    while came < size:
        if obsolete():
            raise StaleEpoch("another owner came before all ranks did")
        time.sleep(LOOK)
        came = store.add("came", 0)
