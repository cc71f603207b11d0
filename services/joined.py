"""What a server tells the others of its pool about itself, and what a further one compares before it joins them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
from collections.abc import Callable, Iterable
from typing import Any

from services.errors import PoolUnavailable, SettingsError
from services.pool.pool import RequestPool
from services.settings.settings import SECRETS, Settings
from services.text import TextTables

# settings of a machine or of its address, and the model's place: its revision is in the pool's name
_LOCAL = SECRETS | {
    "host",
    "port",
    "ssl_certfile",
    "ssl_keyfile",
    "cache_dir",
    "data_dir",
    "files_dir",
    "lora_dir",
    "model",
}


def described(settings: Settings, tables: TextTables) -> str:
    """JSON with the server's address, its settings other than defaults, whether it requires keys, and a digest of what
    its token ids mean. It holds no secret."""
    spelled = (tables.with_special or tables).token_bytes
    digest = hashlib.sha256()
    for piece in spelled:
        digest.update(len(piece).to_bytes(4) + piece)
    values, defaults = (one.without_secrets() for one in (settings, Settings()))
    changed = {name: value for name, value in values.items() if name not in _LOCAL and value != defaults[name]}
    return json.dumps(
        {
            "server": f"{socket.gethostname()}:{settings.port}",
            "keys": bool(settings.tenants),
            "vocabulary": digest.hexdigest(),
            "settings": changed,
        }
    )


async def join(own: str, pools: Iterable[RequestPool], say: Callable[[str], None]) -> None:
    """Say how the servers that run on these pools differ from this one, which says `own`. A pool that is unavailable
    is left out. Raises SettingsError if this server may not join them."""
    for pool in pools:
        with contextlib.suppress(PoolUnavailable):
            for line in compared(own, await pool.settings_of_gateways()):
                say(line)


def compared(own: str, others: Iterable[str]) -> list[str]:
    """A line for each other server with what differs there. A server of the same address is not another one: a process
    that is started again may join those whom its server has joined.

    Raises SettingsError where a difference opens what others protect, or changes what tokens mean.
    """
    here, lines = json.loads(own), []
    found = {other["server"]: other for other in map(json.loads, others)}
    before = found.pop(here["server"], None)
    for server, there in found.items():
        if there["keys"] and not here["keys"] and (before is None or before["keys"]):
            raise SettingsError(
                f"api_key: {server} serves the same pool and requires API keys, which this server would not; "
                "set its keys here too, or another pool: --pool NAME"
            )
        if there["vocabulary"] != here["vocabulary"]:
            raise SettingsError(
                f"tokenizer: {server} serves the same pool with another vocabulary, so tokens would mean other text "
                "here; use the same tokenizer, or another pool: --pool NAME"
            )
        if differing := _differing(here, there):
            lines.append(f"{server} serves the same pool with other settings: {', '.join(differing)}")
    return lines


def _differing(here: dict[str, Any], there: dict[str, Any]) -> list[str]:
    own, other = here["settings"], there["settings"]
    names = [name for name in sorted(own | other) if own.get(name) != other.get(name)]
    found = [f"{name}={other.get(name, 'default')} (here {own.get(name, 'default')})" for name in names]
    return ["no API keys (here they are required)"] * (here["keys"] and not there["keys"]) + found
