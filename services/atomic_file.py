"""A file that other processes find whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write(file: Path, data: bytes) -> None:
    """Put `data` into `file`, in place of what was there; its folder is made. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.write_bytes(data)
    part.replace(file)
