"""The Ray actor around an engine. Detached and named, so that it outlives its scheduler with its weights loaded.

Free of ray.serve and FastAPI: importing those costs a restarted engine half a second.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from pathlib import Path
from typing import Any

import ray

from services.config import Settings, load
from services.engine.null import NullEngine
from services.engine.settings import EngineSettings
from services.messages import EngineFigures, Iteration, IterationResult
from services.models import resolve
from services.wire import pack, unpack

ORPHANED_AFTER = 60.0  # seconds without a word from an owner

log = logging.getLogger(__name__)


def build_of(settings: Settings) -> str:
    """What an engine actor is made of: a hash of its source and of the settings it reads.

    A scheduler attaches to an actor only if both were built alike.
    """
    digest = hashlib.sha256(repr((settings.model, settings.null_engine, engine_settings(settings))).encode())
    root = Path(__file__).parent.parent
    for folder in (
        "services/engine",
        "services/models",
        "services/messages.py",
        "services/wire.py",
        "actors/engine.py",
    ):
        for file in sorted((root / folder).rglob("*.py")) if (root / folder).is_dir() else [root / folder]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def engine_settings(settings: Settings) -> EngineSettings:
    return EngineSettings(
        device=settings.device,
        dtype=settings.dtype,
        block_size=settings.block_size,
        kv_blocks=settings.kv_blocks,
        kv_memory_fraction=settings.kv_memory_fraction,
        max_model_len=settings.max_model_len,
        threads=settings.threads,
    )


def load_engine(settings: Settings) -> Any:
    """The engine the settings ask for, its weights in memory."""
    folder = resolve(settings.model, settings.cache_dir, log.info)
    if settings.null_engine:
        return NullEngine.load(folder, engine_settings(settings))
    from services.engine.engine import Engine  # torch: seconds to import, and a null engine has no use for it

    return Engine.load(folder, engine_settings(settings))


class EngineActor:
    """Runs iterations for whoever holds its seat's epoch; forgets everything when that changes."""

    def __init__(self, values: dict[str, Any]) -> None:
        settings = load(**values)
        self._build = build_of(settings)
        self._engine = load_engine(settings)
        self._busy = threading.Lock()
        self._heard = time.monotonic()
        threading.Thread(target=self._end_when_orphaned, name="orphan-watch", daemon=True).start()

    @ray.method(max_task_retries=-1)
    def build(self) -> str:
        """Which build this is; answers once the weights are loaded, also where that is after a restart."""
        self.keep()
        return self._build

    def attach(self, epoch: str) -> bytes:
        """Drop all requests and serve `epoch` alone from now on. Returns the packed EngineFigures."""
        with self._busy:
            self._engine.reset(epoch)
            self.keep()
            figures: EngineFigures = self._engine.figures
            return pack(figures)

    def run(self, iteration: bytes) -> bytes:
        """One iteration, packed on both ways. Raises StaleEpoch for an owner whose time is over."""
        with self._busy:
            result: IterationResult = self._engine.run(unpack(Iteration, iteration))
            self.keep()
            return pack(result)

    def keep(self) -> None:
        """An owner's sign of life."""
        self._heard = time.monotonic()

    def _end_when_orphaned(self) -> None:
        while time.monotonic() - self._heard < ORPHANED_AFTER or self._busy.locked():
            time.sleep(1.0)
        log.warning("no owner for %.0f s, ending", ORPHANED_AFTER)
        context = ray.get_runtime_context()
        group = ray.util.get_current_placement_group()
        if group is not None:
            ray.util.remove_placement_group(group)
        ray.kill(context.current_actor, no_restart=True)
