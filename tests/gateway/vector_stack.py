"""A stack whose engine is the real one, of a tiny model that makes vectors."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from stack import Stack

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.settings.settings import Settings


class VectorStack(Stack):
    def __init__(self, redis_url: str, folder: Path, **settings: Any) -> None:
        super().__init__(redis_url, f"vectors-{secrets.token_hex(4)}", folder, Settings(**settings))
        self.real = Engine.load(folder, EngineSettings(device="cpu", dtype="float32", kv_blocks=100, threads=1))
        self.figures = self.real.figures

    def _make_engine(self) -> Any:
        return self.real
