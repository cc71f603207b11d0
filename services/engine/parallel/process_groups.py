"""Process groups: how ranks find each other, and connect: by gloo for tensors on a CPU, by NCCL on GPUs."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo, Store, TCPStore

from services.errors import StaleEpoch

POLL = 0.002  # seconds between looks at how many ranks have come
PATIENCE = timedelta(hours=1)  # with one message; the loop notices sooner that an engine is stuck

Group = Any  # ProcessGroupGloo or ProcessGroupNCCL; a torch for CPUs has only the first


def open_meeting(host: str) -> TCPStore:
    """A store on `host` where ranks can meet. It lives as long as it is referenced."""
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port = listener.getsockname()[1]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def enter(meeting: str) -> TCPStore:
    """A new connection to the store at `meeting`, which is `host:port`."""
    address, _, port = meeting.rpartition(":")
    return TCPStore(address, int(port), is_master=False, wait_for_workers=False)


def meet(store: Store, size: int, obsolete: Callable[[], bool]) -> None:
    """Wait until all ranks are there, since connecting to one that does not come cannot be cancelled.

    Raises StaleEpoch once `obsolete`.
    """
    came = store.add("came", 1)
    while came < size:
        if obsolete():
            raise StaleEpoch("another owner came before all ranks did")
        time.sleep(POLL)
        came = store.add("came", 0)


def connect(store: Store, rank: int, size: int, host: str, device: torch.device) -> Group:
    """Join a group as `rank` of `size`, all of which must come. `host` is an address of this machine."""
    return _nccl(store, rank, size, host) if device.type == "cuda" else _gloo(store, rank, size, host)


def _gloo(store: Store, rank: int, size: int, host: str) -> Group:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stubs lack it
    options._timeout = PATIENCE
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    return ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Store, rank: int, size: int, host: str) -> Group:
    """A group with its communicator, which the first message would otherwise create in the middle of an iteration."""
    from torch.distributed import ProcessGroupNCCL

    if ip_address(host).is_loopback:  # NCCL prefers any other interface
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    options = ProcessGroupNCCL.Options(is_high_priority_stream=True)  # the layers wait for its results
    options._timeout = PATIENCE
    group = ProcessGroupNCCL(store, rank, size, options)
    group.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
    return group
