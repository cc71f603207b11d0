"""Groups: ranks that are connected, by gloo for tensors of the CPU, by NCCL for those of a GPU."""

from __future__ import annotations

import os
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo, Store

PATIENCE = timedelta(hours=1)  # with one message; who judges sooner whether an engine is stuck is the loop

Group = Any  # ProcessGroupGloo or ProcessGroupNCCL, of which a torch for CPUs has only one


def connect(store: Store, rank: int, size: int, host: str, device: torch.device) -> Group:
    """This process as `rank` of `size`, all of which must come. `host` is an address of this machine."""
    return _nccl(store, rank, size, host) if device.type == "cuda" else _gloo(store, rank, size, host)


def _gloo(store: Store, rank: int, size: int, host: str) -> Group:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = PATIENCE
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    return ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Store, rank: int, size: int, host: str) -> Group:
    """With its communicator, which would else be made by the first message, in the midst of an iteration."""
    from torch.distributed import ProcessGroupNCCL

    if ip_address(host).is_loopback:  # it chooses any other interface first
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    options = ProcessGroupNCCL.Options(is_high_priority_stream=True)  # the layers wait for what it does
    options._timeout = PATIENCE
    group = ProcessGroupNCCL(store, rank, size, options)
    group.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
    return group
