"""A broken rule."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """`rule` is the short name that tables count by; `what` names who broke it and with which values."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"
