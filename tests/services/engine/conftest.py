from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_models import make_tiny_model

from services.engine.engine import Engine
from services.engine.settings import EngineSettings

FLOAT32 = EngineSettings(device="cpu", dtype="float32", block_size=4, kv_blocks=256, threads=1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of a family; each is made once."""
    folders: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in folders:
            folders[family] = make_tiny_model(tmp_path_factory.mktemp(family), family, 200, with_tokenizer=False)
        return folders[family]

    return folder


@pytest.fixture(scope="session")
def llama(tiny_model: Callable[[str], Path]) -> Engine:
    """A float32 engine; each test's driver resets it."""
    return Engine.load(tiny_model("llama"), FLOAT32)
