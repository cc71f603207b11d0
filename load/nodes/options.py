"""The options of `python -m load.nodes`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """`folder` is where a part keeps its files. `model`: `null`, or as `orca serve --model`."""

    folder: Path
    model: str
