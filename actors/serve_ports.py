"""Serve's port for calls between deployments: on the node's own address instead of all of the machine's.

Each replica opens one, for which Serve has no setting. With Ray's token it asks for that first; without, whoever
reaches it may send it a pickle. Other nodes call it by the node's address, which of `orca serve` is the loopback one.
"""

from __future__ import annotations

from typing import Any

import ray
from ray._common.tls_utils import add_port_to_grpc_server
from ray.serve._private import replica


def stay_on_node() -> None:
    """Call in a replica's constructor: its port is opened after that."""
    address = ray.util.get_node_ip_address()

    def add_port(server: Any, _: str) -> int:
        return int(add_port_to_grpc_server(server, f"[{address}]:0" if ":" in address else f"{address}:0"))

    assert "add_port_to_grpc_server" in vars(replica), "Serve opens its port by another function"
    vars(replica)["add_port_to_grpc_server"] = add_port
