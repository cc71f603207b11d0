"""Reasons: what the messages about refused schemas have in common, for counts."""

from __future__ import annotations

import re

LENGTH = 120  # characters of a reason

_DROPPED = (
    r"^.*failed to compile JSON schema: ",  # llguidance: where in the grammar
    r"^\[[^\]]*\] \S+:\d+: (Warning: )?",  # xgrammar: when, and where in its sources
    r" and retrieving it failed.*",
)


def kinds_of(message: str) -> list[str]:
    """The reasons in the message of a library, without places and values; several if it names several keywords."""
    line = next((line for line in message.strip().splitlines() if line.strip()), "no reason")
    for pattern in _DROPPED:
        line = re.sub(pattern, "", line)
    if keywords := re.search(r"Unimplemented keys: \[(.*)\]", line):
        return [f"keyword {name.strip()}" for name in keywords[1].replace('"', "").split(",")]
    if line.startswith("Unknown format"):
        return [line.rstrip(".")]
    line = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`|/\S+/|\{.*\}|\d\S*", "…", line)
    return [" ".join(line.split())[:LENGTH].rstrip(".").replace("|", "/")]
