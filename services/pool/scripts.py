"""The Lua scripts: one file per transition, preceded by the fragments that its `-- include:` line names.

A script takes one argument, a msgpack map of the names that its header lists under `-- Arguments`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from services import wire
from services.messages import End
from services.pool.limits import BEHIND
from services.pool.packing import micros, pack
from services.requests import BATCH_CLASS, FinishReason

_FOLDER = Path(__file__).parent / "lua"
_INCLUDE = re.compile(r"^-- include: (.*)$", re.MULTILINE)
_ARGUMENTS = re.compile(r"^-- {3}(\w+(?:, \w+)*)(?: {2}|$)", re.MULTILINE)

# Ends that the scripts assign themselves; packed here, because the format is opaque to Lua.
CANCELLED = End(FinishReason.CANCELLED)
POISON = End(FinishReason.ERROR, error="the engine died, or the scheduler failed, 3 times while it ran this request")
SEATS_LOST = End(
    FinishReason.ERROR, error="the process that ran this request died or fell silent 6 times, without a token between"
)
TIMEOUT = End(FinishReason.ERROR, error="no engine took the request before its deadline", timed_out=True)
TOO_LARGE = End(FinishReason.ERROR, error="the request needs more tokens, or more KV blocks, than any engine has now")
UNSERVED = End(
    FinishReason.ERROR, error="no engine now has all that the request needs: its tokens, its KV blocks, and its fields"
)
_ENDS = {
    "END_CANCELLED": CANCELLED,
    "END_POISON": POISON,
    "END_SEATS_LOST": SEATS_LOST,
    "END_TIMEOUT": TIMEOUT,
    "END_TOO_LARGE": TOO_LARGE,
    "END_UNSERVED": UNSERVED,
}
_NUMBERS = {"BATCH_CLASS": BATCH_CLASS, "BEHIND": micros(BEHIND)}


@dataclass(frozen=True, slots=True)
class Script:
    """A script's whole text, its SHA1 for EVALSHA, and the names of its arguments."""

    name: str
    text: str
    sha: str
    arguments: frozenset[str]

    def pack(self, /, **arguments: Any) -> bytes:
        """Return the argument of a call."""
        assert arguments.keys() == self.arguments, f"{self.name}: {arguments.keys() ^ self.arguments} differ"
        return pack(arguments)


@cache
def script(name: str) -> Script:
    """The script `lua/<name>.lua`, preceded by each fragment that it needs, once."""
    parts: list[str] = [f"local {key} = {_quoted(wire.pack(end))}\n" for key, end in _ENDS.items()]
    parts += [f"local {key} = {number}\n" for key, number in _NUMBERS.items()]
    seen: set[str] = set()

    def add(path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        for line in _INCLUDE.findall(text):
            for fragment in line.split():
                if fragment not in seen:
                    seen.add(fragment)
                    add(_FOLDER / "fragments" / f"{fragment}.lua")
        parts.append(text)

    add(_FOLDER / f"{name}.lua")
    whole = "".join(parts)
    header = parts[-1].partition("\n-- Arguments\n")[2].partition("\n-- Reply")[0]
    arguments = {word for words in _ARGUMENTS.findall(header) for word in words.split(", ")}
    return Script(name, whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest(), frozenset(arguments))


def names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.lua"))


def _quoted(data: bytes) -> str:
    return '"' + "".join(f"\\{byte:03d}" for byte in data) + '"'
