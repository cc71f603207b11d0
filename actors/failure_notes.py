"""Why a scheduler could not attach to its engine: a note in Ray's GCS, which `orca serve` reads while it starts.

An engine process cannot keep the reason, as its scheduler kills it after a failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from ray.exceptions import RayTaskError
from ray.experimental import internal_kv

from services.errors import EngineLost, ModelError
from services.wire import pack, unpack

LONGEST = 500  # characters of an exception's text


@dataclass(frozen=True, slots=True)
class FailureNote:
    """The latest failure of an engine."""

    pids: list[int]  # of its processes that lived then
    reason: str
    refused: bool  # whether the engine refused the model

    @classmethod
    def of(cls, error: EngineLost | ModelError, pids: list[int]) -> FailureNote:
        if isinstance(error, EngineLost) and isinstance(error.__cause__, RayTaskError):
            return cls(pids, describe(error.__cause__.cause), refused=False)
        return cls(pids, str(error), isinstance(error, ModelError))


def describe(error: BaseException) -> str:
    """The type and the text of an exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:LONGEST]}" if text else type(error).__name__


def leave_note(engine: int, note: FailureNote) -> None:
    """Replace the note of the engine with this index. Raises RayError if the GCS cannot be reached."""
    internal_kv._internal_kv_put(_key(engine), pack(note), overwrite=True)


def read_note(engine: int) -> FailureNote | None:
    """The latest note of the engine. Raises RayError if the GCS cannot be reached."""
    found = internal_kv._internal_kv_get(_key(engine))
    return None if found is None else unpack(FailureNote, found)


def _key(engine: int) -> str:
    return f"orca:engine-failure:{engine}"
