"""Requests that make the scheduler raise wherever it handles them: a real exception from inside a real function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from services.messages import Exchange
from services.pool.reference.pool import ReferencePool
from services.scheduling import scheduler
from services.scheduling.entry import Entry
from services.scheduling.flight import Flight
from services.scheduling.lineup import Lineup

# where: (owner of the function, its name, which argument is the request; self is 0)
SITES: dict[str, tuple[Any, str, int]] = {
    "a check of what is claimed": (scheduler, "refusal", 0),
    "the queue": (Lineup, "add", 1),
    "whether it fits": (Lineup, "_found", 1),
    "its start": (Lineup, "_start", 1),
    "a chunk": (Flight, "put", 1),
    "a decode": (Flight, "put_decode", 1),
    "what the engine is told": (Entry, "as_new", 0),
    "new blocks": (Lineup, "tell", 1),
    "a full block": (Lineup, "publish", 1),
    "a token": (Entry, "append", 0),
    "a commit": (Entry, "take_commit", 0),
    "its end": (Lineup, "leave", 1),
}
PACKING = "packing"  # not in the scheduler: the exchange that carries its tokens cannot be packed


@contextmanager
def poisonous(sites: dict[str, str]) -> Iterator[None]:
    """While it lasts, functions raise for requests: `sites` names the site of each id."""
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
