"""`POST /v1/batches`: its request. A batch can ask every endpoint that is registered as one for batches."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from gateway.endpoints import BATCHED
from gateway.schemas.strict import Strict

MAX_WINDOW = 30 * 86_400  # seconds
_WINDOW = re.compile(r"([0-9]{1,7})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def window_seconds(window: str) -> int:
    """The seconds of a completion window, a number with a unit such as `24h`. Raises ValueError."""
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 1 <= seconds <= MAX_WINDOW:
        raise ValueError(f"must be a number of s, m, h or d, like '24h', at most {MAX_WINDOW // 86_400}d")
    return seconds


def _checked(window: str) -> str:
    window_seconds(window)
    return window


class ExpiresAfter(Strict):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class BatchRequest(Strict):
    input_file_id: Annotated[str, Field(max_length=100)]
    endpoint: Literal[BATCHED]  # type: ignore[valid-type]  # mypy knows literals in the source alone
    completion_window: Annotated[str, AfterValidator(_checked)]
    metadata: (
        Annotated[
            dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None
    output_expires_after: ExpiresAfter | None = None
