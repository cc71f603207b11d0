"""The started pool server, told to keep its file so that the history can be read from it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import redis

from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer


def connect(data_dir: Path) -> redis.Redis:
    """To the server on this folder."""
    return redis.Redis.from_url(PoolServer(choose_server(), data_dir).url, socket_timeout=2)


def keep_history(data_dir: Path) -> None:
    """No rewrites, which would drop what happened; and times in the file, where the server can."""
    with connect(data_dir) as server:
        server.config_set("auto-aof-rewrite-percentage", 0)
        with contextlib.suppress(redis.ResponseError):  # before version 7
            server.config_set("aof-timestamp-enabled", "yes")
