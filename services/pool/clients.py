"""Clients of the pool's server: of one server, of the master that Sentinels name, of the right node of a Cluster.

redis-py's defaults would send a slow script a second time and let a blocking read hang for a minute. So every option
that matters is set here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import redis.asyncio as redis
from redis import exceptions
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from services.pool.address import Address, parse

CONNECT_TIMEOUT = 2.0  # seconds
SENTINEL_TIMEOUT = 1.0  # seconds for a Sentinel's answer
NodeAddress = tuple[str, int]


class Nodes:
    """The node to connect to: the one that the last MOVED named, else one of the URL's, in turn after each failure.

    All keys of a pool are in one slot, so one node of a Cluster serves all of them.
    """

    def __init__(self, hosts: tuple[NodeAddress, ...]) -> None:
        self._hosts = deque(hosts)
        self._moved: NodeAddress | None = None

    @property
    def current(self) -> NodeAddress:
        return self._moved or self._hosts[0]

    def move_to(self, host: str, port: int) -> None:
        """A node said that this one has the slot. It leaves out the host if that is its own."""
        self._moved = (host or self.current[0], port)

    def failed(self, address: NodeAddress) -> None:
        """This node does not answer."""
        if address == self._moved:
            self._moved = None
        elif address == self._hosts[0]:
            self._hosts.rotate(-1)


class NodeConnection(redis.Connection):
    """A connection that is opened to the current one of `nodes`, whose name is resolved each time."""

    def __init__(self, nodes: Nodes, **options: Any) -> None:
        self._nodes = nodes
        super().__init__(**options)

    async def connect(self) -> None:
        if not self.is_connected:
            self.host, self.port = self._nodes.current
        try:
            await super().connect()  # type: ignore[no-untyped-call]  # redis-py gives it no types
        except (exceptions.RedisError, OSError):
            self._nodes.failed((self.host, self.port))
            raise


class NodeTLSConnection(NodeConnection, redis.SSLConnection):
    """A `NodeConnection` with TLS."""


class NewestSentinel(Sentinel):
    """Believes the Sentinel that knows of the latest failover. One that was cut off with an earlier master does not."""

    async def discover_master(self, service_name: str) -> NodeAddress:
        """The master's host and port. Raises MasterNotFoundError if no Sentinel that answers in time knows one."""
        asked: list[Any] = list(self.sentinels)
        answers = await asyncio.gather(*(one.sentinel_masters() for one in asked), return_exceptions=True)
        found = [
            (state["config-epoch"], state["ip"], state["port"])
            for masters in answers
            if not isinstance(masters, BaseException)
            if (state := masters.get(service_name)) and self.check_master_state(state, service_name)
        ]
        if not found:
            errors = ", ".join(str(answer) for answer in answers if isinstance(answer, BaseException))
            raise MasterNotFoundError(
                f"no Sentinel knows a living master {service_name!r}" + (errors and f": {errors}")
            )
        _, host, port = max(found)
        return host, port


def open_clients(url: str, count: int) -> list[Any]:
    """Return `count` of redis-py's clients for the server at a URL, which connect at the first call and repeat none.

    Their connections find out at each opening where the server is: they resolve its name, or ask the Sentinels. Raises
    ValueError for a wrong URL.
    """
    address = parse(url)
    options: dict[str, Any] = dict(parse_url(address.server_url)) | {
        "protocol": 2,
        "decode_responses": False,
        "socket_timeout": None,  # each call is limited as a whole
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "health_check_interval": 0,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    if not address.hosts:
        return [redis.Redis.from_pool(redis.ConnectionPool(**options)) for _ in range(count)]
    tls = options.pop("connection_class", None) is redis.SSLConnection
    for one in ("host", "port"):
        options.pop(one, None)
    if address.kind == "sentinel":
        return [_of_sentinels(address, options, tls) for _ in range(count)]
    options |= {"connection_class": NodeTLSConnection if tls else NodeConnection, "nodes": Nodes(address.hosts)}
    return [redis.Redis.from_pool(redis.ConnectionPool(**options)) for _ in range(count)]


def _of_sentinels(address: Address, options: dict[str, Any], tls: bool) -> Any:
    shared = {name: value for name, value in options.items() if name.startswith(("ssl_", "retry", "maint"))}
    sentinels = NewestSentinel(  # type: ignore[no-untyped-call]
        address.hosts,
        sentinel_kwargs={
            **shared,
            **address.sentinel_login,
            "ssl": tls,
            "protocol": 2,
            "socket_timeout": SENTINEL_TIMEOUT,
            "socket_connect_timeout": SENTINEL_TIMEOUT,
        },
    )
    return sentinels.master_for(address.master, ssl=tls, **options)


async def close_client(client: Any) -> None:
    """Close the client's connections, and those to the Sentinels."""
    await client.aclose()
    await client.connection_pool.disconnect()
    if sentinels := getattr(client.connection_pool, "sentinel_manager", None):
        await sentinels.aclose()


async def master_of(client: Any) -> NodeAddress | None:
    """The master that the Sentinels of a client name; None if none of them names one."""
    pool = client.connection_pool
    try:
        found: NodeAddress = await pool.sentinel_manager.discover_master(pool.service_name)
        return found
    except (exceptions.RedisError, OSError):
        return None


def has_sentinels(client: Any) -> bool:
    return hasattr(client.connection_pool, "sentinel_manager")


def nodes_of(client: Any) -> Nodes | None:
    """The nodes that clients opened together share; None if they have a unix socket or Sentinels."""
    nodes = client.connection_pool.connection_kwargs.get("nodes")
    assert nodes is None or isinstance(nodes, Nodes)
    return nodes
