"""Requests that make the scheduler raise an exception in a chosen function when it handles them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from load.reference.pool import ReferencePool
from services.messages import Exchange
from services.scheduling.batch_builder import InFlight
from services.scheduling.kv_cache_manager import KVCacheManager
from services.scheduling.request_entry import RequestEntry
from services.scheduling.request_queues import RequestQueues

# site: (owner of the function, its name, the index of the argument that is the request)
SITES: dict[str, tuple[Any, str, int]] = {
    "the check of a claim": (RequestEntry, "refusal", 0),
    "the queue": (RequestQueues, "add", 1),
    "the check of its blocks": (KVCacheManager, "fits", 1),
    "its start": (KVCacheManager, "start", 1),
    "a chunk": (InFlight, "put", 1),
    "a decode": (InFlight, "put_decode", 1),
    "the message to the engine": (RequestEntry, "as_new", 0),
    "new blocks": (KVCacheManager, "take_unsent_blocks", 1),
    "a full block": (KVCacheManager, "publish", 1),
    "a token": (RequestEntry, "append", 0),
    "a commit": (RequestEntry, "take_commit", 0),
    "its end": (RequestQueues, "remove", 1),
}
PACKING = "packing"  # not in the scheduler: the exchange with its tokens cannot be packed


@contextmanager
def poisonous(sites: dict[str, str]) -> Iterator[None]:
    """A context in which functions raise for some requests: `sites` maps their ids to sites."""
    patches = [_patch(*SITES[site], sites) for site in SITES if site in sites.values()]
    if PACKING in sites.values():
        patches.append(mock.patch.object(ReferencePool, "exchange", _packing(ReferencePool.exchange, sites)))
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def _patch(owner: Any, name: str, which: int, sites: dict[str, str]) -> Any:
    function = getattr(owner, name)
    site = next(site for site, found in SITES.items() if found == (owner, name, which))

    def call(*args: Any, **kwargs: Any) -> Any:
        entry = args[which]
        if sites.get(entry.id) == site:
            raise KeyError(f"a fault at {site}")
        return function(*args, **kwargs)

    return mock.patch.object(owner, name, call)


def _packing(exchange: Callable[..., Any], sites: dict[str, str]) -> Callable[..., Any]:
    async def call(pool: ReferencePool, message: Exchange) -> Any:
        for commit in message.commits:
            if sites.get(commit.id) == PACKING:
                raise OverflowError(f"{commit.tokens} cannot be packed")
        return await exchange(pool, message)

    return call
