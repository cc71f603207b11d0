"""The Ray actor around an engine. Detached and named, so that it outlives its scheduler with its weights loaded.

Each engine has two such processes: one with weights, and a spare with everything imported that loads when the other
dies. Free of ray.serve and FastAPI: importing those costs a restarted engine half a second.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from actors.lifeline import Lifeline
from actors.weights_mark import WeightsMark, is_marked
from services.background import start_thread
from services.engine.null import NullEngine
from services.engine.parallel.layout import Layout
from services.engine.settings import EngineSettings
from services.engine.startup.warm_up import WarmUp
from services.errors import OtherWeights, StaleEpoch
from services.messages import EngineFigures, Iteration, IterationResult
from services.models import resolve
from services.models.pin import check_pin
from services.settings.settings import Settings
from services.settings.sources import load
from services.wire import pack, unpack

ORPHANED_AFTER = 60  # seconds without a word from an owner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What an engine process says of itself. `epoch` is the one it serves, None while it has no weights.

    `loading`: it gets them now. `other_loaded`: the other process of its rank lives and has weights, or loads them.
    """

    name: str  # of the actor; a process that starts again has the same
    build: str
    epoch: str | None
    pid: int
    node: str
    lifeline: str
    meeting: str  # where the ranks of an engine meet; of the first one's processes
    loading: bool
    other_loaded: bool

    @property
    def order(self) -> tuple[int, bool]:
        """Grows with the epoch; of those without, one that loads comes last."""
        return _number(self.epoch) if self.epoch else 0, self.loading


def _number(epoch: str) -> int:
    """The part of an epoch that grows: `<number>:<nonce>`."""
    return int(epoch.partition(":")[0])


# What tokens and messages of an engine depend on: folders, of which the source files count, and files.
SOURCES = (
    "services/engine",
    "services/models",
    "services/background.py",
    "services/child_environment.py",
    "services/errors.py",
    "services/messages.py",
    "services/requests.py",
    "services/files.py",
    "services/wire.py",
    "actors/engine.py",
    "actors/weights_mark.py",
)
SUFFIXES = frozenset({".py", ".h", ".cpp"})


def build_of(settings: Settings, root: Path = Path(__file__).parents[1]) -> str:
    """What an engine actor is made of: a hash of its source and of the settings it reads.

    A scheduler attaches to an actor only if both were built alike. Compiled files beside the source do not count: they
    come and go while a server runs.
    """
    digest = hashlib.sha256(repr((settings.model, settings.null_engine, engine_settings(settings))).encode())
    for file in source_files(root):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def source_files(root: Path) -> list[Path]:
    """The files of `SOURCES` in the checkout or installation at `root`."""
    found = []
    for name in SOURCES:
        path = root / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [file for file in files if file.suffix in SUFFIXES and file.is_file()]
    return found


def engine_settings(settings: Settings) -> EngineSettings:
    return EngineSettings(
        device=settings.device,
        dtype=settings.dtype,
        weights=settings.weights,
        batch_invariant=settings.batch_invariant,
        cache_dir=settings.cache_dir,
        block_size=settings.block_size,
        kv_blocks=settings.kv_blocks,
        kv_memory_fraction=settings.kv_memory_fraction,
        max_model_len=settings.max_model_len,
        threads=settings.threads,
        tp=settings.tp,
        pp=settings.pp,
        deadly_token=settings.deadly_token,
    )


def layout_of(settings: Settings, rank: int = 0) -> Layout:
    return Layout(settings.tp, settings.pp, rank)


class EngineActor:
    """Runs iterations for whoever holds its seat's epoch; forgets everything when that changes.

    `attach`, `run` and `drop` come one after the other, in one thread; `status` and `expect` are answered beside them.
    """

    def __init__(self, values: dict[str, Any], rank: int, other: str) -> None:
        """`other` is the actor of the rank's other process."""
        settings = load(**values)
        self._layout = layout_of(settings, rank)
        self._settings = engine_settings(settings)
        self._null = settings.null_engine
        self._build = build_of(settings)
        self._model = settings.model
        self._folder = resolve(settings.model, settings.cache_dir, log.info)
        context = ray.get_runtime_context()
        self._name = context.get_actor_name() or ""
        self._mark = WeightsMark(f"{context.get_node_id()}-{self._name}")
        self._other_mark = f"{context.get_node_id()}-{other}"
        self._node = ray.util.get_node_ip_address()
        self._lifeline = Lifeline(self._node).address
        self._engine: Any = None
        self._warm_up: WarmUp | None = None
        self._epoch: str | None = None
        self._expected = 0  # the number of the last epoch that somebody wants to attach under
        self._meeting: Any = None
        self._links: Any = None
        self._silence = 0  # seconds
        if not self._null:
            from services.engine.startup.preload import preload  # torch: seconds, and a null engine has no use for it

            self._settings = preload(self._folder, self._settings)
        if self._layout.size > 1 and rank == 0:
            from services.engine.parallel.process_groups import open_meeting

            self._meeting = open_meeting(self._node)
        start_thread(self._end_when_orphaned, "orphan-watch")

    @ray.method(concurrency_group="control", max_task_retries=-1)
    def status(self) -> EngineStatus:
        """An owner's sign of life. Also answers while an iteration runs, and after a restart once all is imported."""
        self._silence = 0
        meeting = f"{self._meeting.host}:{self._meeting.port}" if self._meeting else ""
        return EngineStatus(
            name=self._name,
            build=self._build,
            epoch=self._epoch,
            pid=os.getpid(),
            node=self._node,
            lifeline=self._lifeline,
            meeting=meeting,
            loading=bool(self._mark) and self._epoch is None,
            other_loaded=is_marked(self._other_mark),
        )

    @ray.method(concurrency_group="control")
    def expect(self, epoch: str) -> None:
        """An owner under `epoch` is about to attach: wait no longer for what a former one has left undone."""
        self._expected = max(self._expected, _number(epoch))

    def attach(self, epoch: str, meeting: str = "") -> tuple[bytes, float, bytes, float]:
        """Drop all requests and serve `epoch` alone from now on, with the weights loaded before if they were not. The
        ranks of an engine meet at `meeting` first.

        Returns the packed EngineFigures, the seconds spent loading, an iteration to judge its speed by (packed), and
        the seconds that took.
        """
        started = time.monotonic()
        if self._engine is None:
            self._load()
        loading = time.monotonic() - started
        if self._layout.size > 1:
            self._link(epoch, meeting)
        if self._warm_up is None:
            self._warm_up = WarmUp(self._engine, self._settings.block_size, self._settings.deadly_token)
        warmth = self._warm_up(epoch)
        figures: EngineFigures = self._engine.figures
        self._epoch = epoch
        told = replace(figures, numerics=f"{figures.numerics} {warmth.bits}")
        return pack(told), loading, pack(warmth.iteration), warmth.seconds

    def run(self, packed: bytes, *unheard: bytes) -> bytes:
        """One iteration, packed on both ways. Raises StaleEpoch for an owner whose time is over. `unheard` are the
        results since the last call, where there are ranks that sampled none of them."""
        if self._engine is None:
            raise StaleEpoch("the weights were dropped: another process is this engine now")
        earlier = [[unpack(IterationResult, result) for result in unheard]] if unheard else []
        result: IterationResult = self._engine.run(unpack(Iteration, packed), *earlier)
        return pack(result)

    def drop(self, epoch: str) -> None:
        """Become a spare, without weights, unless the owner under `epoch`, who has another engine, came earlier than
        the one this engine serves: a scheduler that was stopped says it late."""
        if self._epoch is None or _number(epoch) <= _number(self._epoch):
            return
        self._mark.clear()
        self._engine = self._warm_up = self._epoch = None
        self._unlink()
        gc.collect()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()

    def _load(self) -> None:
        self._mark.set()
        try:
            self._engine = self._loaded()
        except BaseException:
            self._mark.clear()
            raise

    def _loaded(self) -> Any:
        if self._null:
            return NullEngine.load(self._folder, self._settings)
        from services.engine.engine import Engine

        self._check_weights()
        engine = Engine.load(self._folder, self._settings, self._layout.rank)
        self._check_weights()  # the files may have been replaced while they were read
        return engine

    def _check_weights(self) -> None:
        """Raises OtherWeights. A file that is converted has another folder when it is what it was again."""
        try:
            check_pin(self._model, self._folder, self._settings.cache_dir)
        except OtherWeights:
            self._folder = resolve(self._model, self._settings.cache_dir, log.info)
            check_pin(self._model, self._folder, self._settings.cache_dir)

    def _link(self, epoch: str, meeting: str) -> None:
        """Leave what other ranks there were, and find those of this epoch."""
        from services.engine.parallel.links import Links
        from services.engine.startup import devices

        number = _number(epoch)
        if self._expected > number:
            raise StaleEpoch(f"epoch {epoch}: a later owner is about to attach, or has")
        self._unlink()
        self._links = Links(
            self._layout,
            self._node,
            meeting,
            epoch,
            lambda: self._expected > number,
            devices.choose_device(self._settings),
            self._settings.batch_invariant,
        )
        self._engine.link(self._links)
        self._warm_up = None  # all ranks run as many, whether they had some before or not

    def _unlink(self) -> None:
        if self._links:
            self._links.close()
            self._links = None

    def _end_when_orphaned(self) -> None:
        """The silence is counted, not measured: a process that was stopped must not take itself for an orphan."""
        while self._silence < ORPHANED_AFTER:
            time.sleep(1.0)
            self._silence += 1
        log.warning("no owner for %d s, ending", ORPHANED_AFTER)
        context = ray.get_runtime_context()
        group = ray.util.get_current_placement_group()
        if group is not None:
            ray.util.remove_placement_group(group)
        ray.kill(context.current_actor, no_restart=True)
