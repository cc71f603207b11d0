"""EngineActor: the Ray actor around an engine. It is detached and named, so that it outlives its scheduler and keeps
the weights loaded.

Each rank of an engine has two such processes: one with weights, and a spare with everything imported, which loads when
the other dies. Imports neither ray.serve nor FastAPI, which would cost a restarted engine half a second.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import time
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import ray

from actors.channel import Answer, Door
from actors.engine_build import build_of, engine_files, engine_settings, layout_of
from actors.engine_record import EngineRecord, forget
from actors.engine_server import EngineServer
from actors.liveness import Lifeline, WeightsMark, is_marked
from actors.memory_account import MemoryAccount, account_folder
from services.background import at_low_priority, start_thread
from services.engine.null import NullEngine
from services.engine.warm_up import WarmUp
from services.errors import LaterEpoch, ModelError, NoRoom, OtherWeights, StaleEpoch
from services.limits import return_memory
from services.logs import configure, describe
from services.messages import EngineFigures, Iteration, IterationResult
from services.models.pin import check_pin
from services.models.replaced import resolve_replaced
from services.settings.sources import load
from services.started import Started
from services.wire import pack, unpack

END_TIMEOUT = 5.0  # seconds in which a process that was killed must be gone
ORPHANED_AFTER = 60  # seconds without a call from an owner
ROOM_TIMEOUT = 5.0  # seconds to wait for memory before the owner is told
LOOK_FOR_ROOM = 0.05  # seconds between two looks
LOOK_AT_ACCOUNT = 0.5  # seconds between looks at whether another engine waits for memory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The state of an engine process. Actors of another build send it too, so its fields and its place are fixed."""

    name: str  # of the actor; it stays the same when the process is replaced
    build: str
    epoch: str | None  # that the process serves; None if it has no weights
    pid: int
    node: str
    lifeline: str
    meeting: str  # address at which the ranks of an engine meet, of processes of rank 0
    loading: bool  # whether the process is loading the weights
    other_loaded: bool  # whether the other process of its rank lives and has the weights, or is loading them

    @property
    def order(self) -> tuple[int, bool]:
        """Sorts processes by preference: the latest epoch is last; without epochs, the one that is loading is last."""
        return _number(self.epoch) if self.epoch else 0, self.loading


@dataclass(frozen=True, slots=True)
class ServeReply:
    """A rank that is ready to serve."""

    figures: bytes  # packed EngineFigures
    loading: float  # seconds spent loading the weights
    warm_up: bytes  # a packed iteration that measures the speed of the engine
    warm_up_seconds: float  # that it took
    block_names: dict[int, bytes]  # of the full blocks that earlier owners have left (see `BlockNames`)
    door: Door  # where the owner connects


def _left_by(memory: Any, mark: str) -> bool:
    """Whether what the process with this mark has put into the memory may be used: it is at its end, so that nothing
    writes there any more, as are children that have its files, and its GPU had no fault."""
    return bool(memory.end_maker(END_TIMEOUT) and _gone(mark) and memory.sound)


def _gone(mark: str) -> bool:
    """Whether the process with this mark, which was just killed, ends in time."""
    until = time.monotonic() + END_TIMEOUT
    while is_marked(mark):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _free_unused() -> None:
    """Give back the memory to which nothing refers, also a GPU's."""
    gc.collect()
    return_memory()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def _no_room(needs: int) -> NoRoom:
    return NoRoom(f"the engine needs {needs / (1 << 30):.1f} GiB, which other engines have")


def _number(epoch: str) -> int:
    """The number of an epoch `<number>:<nonce>`, which increases with each owner."""
    return int(epoch.partition(":")[0])


class EngineActor:
    """Runs iterations for the owner of its seat's epoch, and drops all requests when the epoch changes.

    Iterations come over a channel. They, `serve`, `drop` and `hold` run one after the other, in the thread of the
    engine. The other methods run beside them. After `serve` has returned, no
    iteration of an earlier epoch runs or writes: one that ran has ended, and later ones are refused.
    """

    def __init__(self, values: dict[str, Any], rank: int, other: str) -> None:
        """`values` are settings by name. `other` is the name of the rank's other actor."""
        context = ray.get_runtime_context()
        self._name = context.get_actor_name() or ""
        self._record = EngineRecord(self._name)
        with self._record.noting(refuses=True):  # Ray does not start an actor again that has not come up
            self._set_up(values, rank, other)

    def _set_up(self, values: dict[str, Any], rank: int, other: str) -> None:
        settings = load(**values)
        configure(settings, "engine", rank=str(rank))
        self._layout = layout_of(settings, rank)
        self._settings = engine_settings(settings)
        self._tag, self._turn = settings.tag, settings.turn_seconds
        self._account: MemoryAccount | None = None  # None: a null engine, a GPU, or a machine that can keep none
        self._needs = 0  # bytes of this engine, once it was loaded
        self._null = settings.null_engine
        self._build = build_of(settings)
        self._model, self._replaced = settings.model, engine_files(settings)
        self._folder: Path | None = None
        describe(engine=self._name)
        node_id = ray.get_runtime_context().get_node_id()
        self._mark = WeightsMark(f"{node_id}-{self._name}")
        self._other, self._other_mark = other, f"{node_id}-{other}"
        self._node = ray.util.get_node_ip_address()
        self._lifeline = Lifeline(self._node).address
        self._engine: Any = None
        self._memory: Any = None  # SharedMemory: its own, or as a spare the other process's; None for a null engine
        self._warm_up: WarmUp | None = None
        self._prepared: tuple[Any, WarmUp] | None = None  # an engine in the memory that a spare holds
        self._epoch: str | None = None
        self._expected = 0  # number of the latest epoch under which an owner wants to attach
        self._meeting: Any = None
        self._links: Any = None
        self._silence = 0  # seconds since the last call of `status`
        self._server = EngineServer(self._start, finish=self._layout.size > 1)
        with contextlib.suppress(ModelError), self._record.noting(refuses=True):  # `serve` raises it to the owner
            self._find_model()
        if self._layout.size > 1 and rank == 0:
            from services.engine.parallel.process_groups import open_meeting

            self._meeting = open_meeting(self._node)
        start_thread(self._end_when_orphaned, "orphan-watch")

    def _find_model(self) -> Path:
        """Return the model's folder, once all that its engine needs is imported. Raises ModelError; the next call looks
        again."""
        if self._folder is None:
            folder = resolve_replaced(self._model, self._replaced, self._settings.cache_dir, log.info)
            if not self._null:
                from services.engine.preload import preload  # imports torch for seconds, which a null engine need not

                if is_marked(self._other_mark):  # this one is a spare, which has time
                    self._settings = at_low_priority(preload, folder, self._settings)
                else:
                    self._settings = preload(folder, self._settings)
                from services.engine.startup.shared_memory import SharedMemory

                self._memory = SharedMemory(self._build)
                self._open_account()
            self._folder = folder
        return self._folder

    def _open_account(self) -> None:
        """Take part in the account of the machine's memory, if the engine is on a CPU and there can be one."""
        from services.engine.startup import devices

        if self._account or devices.choose_device(self._settings).type != "cpu":
            return
        folder, engine = account_folder(ray.get_runtime_context().get_node_id()), self._name.rsplit("-", 2)[0]
        try:
            self._account = MemoryAccount(folder, engine, self._tag, self._settings.memory, self._turn)
        except OSError as error:
            log.warning("engines do not share the memory of this machine by turns: %s", error)
            return
        start_thread(self._make_room, "memory-account")

    def _make_room(self) -> None:
        """Tell the owner when this engine has to give back its weights, because another one waits for the memory."""
        assert self._account
        while True:
            time.sleep(LOOK_AT_ACCOUNT)
            if self._epoch is not None and self._account.leaves():
                self._server.tell(Answer(None, leave=True))

    @ray.method(concurrency_group="control", max_task_retries=-1)
    def status(self) -> EngineStatus:
        """The state of this process; the call is also the owner's sign of life. Answers while an iteration runs, and
        after a restart as soon as everything is imported."""
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
        """Announce an owner under `epoch`: a `serve` for an earlier epoch, which may wait for other ranks, gives up."""
        self._expected = max(self._expected, _number(epoch))

    @ray.method(concurrency_group="control")
    def memory(self) -> tuple[str, float]:
        """A path on this node to the memory of a loaded process, empty if it shares none; and the seconds of its
        warm-up."""
        warm_up = self._warm_up
        path = self._memory.path if self._memory and self._epoch else ""
        return path, warm_up.seconds if warm_up else inf

    def hold(self, path: str, warm_up_seconds: float) -> None:
        """As a spare, hold the memory at `path` of the other process, so that it outlives that one, and prepare
        everything to serve with it."""
        self._server.call(lambda: self._hold(path, warm_up_seconds))

    def serve(self, epoch: str, meeting: str = "", far: bool = False) -> ServeReply:
        """Drop all requests and serve only `epoch` from now on. Loads the weights if they are not loaded. The ranks of
        an engine meet at `meeting` first. `far`: the owner is on another node. Waits for the iteration that runs: the
        names of blocks are true only if nothing is written afterwards. Raises NoRoom if other engines have the memory
        for the weights, and keeps its place in the queue for them until it is called again.
        """
        try:
            with self._record.noting():
                return self._server.call(lambda: self._serve(epoch, meeting, far))
        except (StaleEpoch, ModelError, NoRoom):
            raise
        except Exception:  # the owner kills this process; its log says why
            log.exception("this engine cannot serve")
            raise

    def drop(self, epoch: str) -> None:
        """Drop the weights and become a spare: the owner under `epoch` uses the other process, or the engine sleeps.

        Does nothing if this process serves a later epoch: a scheduler that was stopped may send this late.
        """
        self._server.call(lambda: self._drop(epoch))

    def _serve(self, epoch: str, meeting: str, far: bool) -> ServeReply:
        self._check_latest(epoch)
        self._server.dismiss(f"epoch {self._epoch} is over: the engine serves {epoch}")
        if self._engine is None:
            self._wait_for_room(epoch)
        started = time.monotonic()
        if self._engine is None:
            self._load()
        loading = time.monotonic() - started
        if self._layout.size > 1:
            self._connect_ranks(epoch, meeting)
        if self._warm_up is None:
            self._warm_up = WarmUp(self._engine, self._settings.deadly_token)
        with self._noting():  # of an owner that has gone, iterations may run
            warmth = self._warm_up(epoch)
        if self._memory:
            self._memory.rest()  # nothing runs, though an owner that has gone may not have asked for a result
        figures: EngineFigures = self._engine.figures
        self._epoch = epoch
        describe(epoch=epoch)
        figures = replace(figures, numerics=f"{figures.numerics} {warmth.bits}")
        door = self._server.open(self._node if far else "")
        names = self._engine.block_names
        return ServeReply(pack(figures), loading, pack(warmth.iteration), warmth.seconds, names, door)

    def _check_latest(self, epoch: str) -> None:
        latest = max(self._expected, _number(self._epoch) if self._epoch else 0)  # the call of `expect` may be lost
        if latest > _number(epoch):  # the caller was stopped, and goes on late
            raise LaterEpoch(f"epoch {epoch}: a later owner is about to attach, or has", latest)

    def _wait_for_room(self, epoch: str) -> None:
        """Have what this engine needs in the account of the machine's memory. Raises NoRoom, and ModelError if the
        account will never have room for it."""
        folder = self._find_model()
        if self._account is None or self._account.join():  # what a spare takes over needs no file of the model
            return
        from services.engine.startup.needs import needed

        folder = self._check_weights(folder)  # first: no engine makes room for one that refuses its model
        needs = self._needs or needed(folder, self._settings, self._account.bytes)
        until = time.monotonic() + ROOM_TIMEOUT
        while not self._account.take(needs):
            if time.monotonic() > until:
                raise _no_room(needs)
            self._check_latest(epoch)
            time.sleep(LOOK_FOR_ROOM)

    def _start(self, packed: bytes, missed: list[bytes]) -> Started[bytes]:
        """Start an iteration; the iteration and its result are packed. `missed` are the packed results since the last
        call, if this is one of several ranks and another one samples.

        Raises StaleEpoch for an owner whose epoch is over.
        """
        earlier = [[unpack(IterationResult, result) for result in missed]] if missed else []
        with self._account.using() if self._account else contextlib.nullcontext(), self._noting():
            started: Started[IterationResult] = self._engine.start(unpack(Iteration, packed), *earlier)
        return Started(started.done, lambda: self._result(started)).then(pack)

    def _result(self, started: Started[IterationResult]) -> IterationResult:
        with self._noting():
            return started.result()

    def _noting(self) -> contextlib.AbstractContextManager[None]:
        """Within, a fault of the device is noted for the spare."""
        return self._memory.iteration(lambda: self._engine.busy) if self._memory else contextlib.nullcontext()

    def _hold(self, path: str, warm_up_seconds: float) -> None:
        try:
            folder = self._find_model()
        except ModelError as error:
            log.error("this spare has no model: %s", error)
            return
        if self._engine is not None or not self._memory or not self._memory.hold(path):
            return
        if self._account:
            self._account.join()
        if self._prepared:  # in another memory, which goes with it
            self._prepared = None
            _free_unused()
        from services.engine.engine import Engine

        try:
            if engine := Engine.adopt(folder, self._settings, self._layout.rank, self._memory):
                warm_up = WarmUp(engine, self._settings.deadly_token, warm_up_seconds)
                if self._layout.size == 1:
                    warm_up.run()  # maps the weights, too; the blocks that it writes are the engine's own
                self._prepared = engine, warm_up
            _free_unused()
        except Exception:
            log.exception("this spare cannot prepare itself; it loads when it is needed")

    def _drop(self, epoch: str) -> None:
        if self._epoch is None or _number(epoch) < _number(self._epoch):
            return
        self._server.dismiss("the weights were dropped")
        self._mark.clear()
        self._engine = self._warm_up = self._epoch = None
        self._disconnect_ranks()
        if self._memory:
            self._memory.release()
        _free_unused()
        if self._account:
            self._account.release()

    def _load(self) -> None:
        self._mark.set()
        try:
            self._engine = self._load_engine()
            self._settle()
        except BaseException:
            self._engine = self._warm_up = None
            self._mark.clear()
            if self._memory:
                self._memory.release()
            _free_unused()
            if self._account:
                self._account.release()
            raise

    def _settle(self) -> None:
        """Correct the account, now that the engine is loaded. If it needs more than was computed, raises NoRoom while
        there is no room for that, and ModelError if there will never be. Ranks keep what was computed for all."""
        if self._account is None or self._layout.size > 1:
            return
        self._needs = self._engine.memory + self._settings.beside_model
        if not self._account.settle(self._needs):
            raise _no_room(self._needs)

    def _load_engine(self) -> Any:
        folder = self._find_model()
        if self._null:
            return NullEngine.load(folder, self._settings)
        from services.engine.engine import Engine

        prepared, self._prepared = self._prepared, None
        if is_marked(self._other_mark):  # it may write when it goes on
            log.warning("the other process does not answer, and is killed")
        if _left_by(self._memory, self._other_mark):
            self._memory.rest()  # its last iteration, which may have been under way, has ended
        else:
            self._memory.release()
            if prepared:
                prepared = None
                _free_unused()
        if prepared:
            engine, self._warm_up = prepared
            engine.recall()
            return engine
        folder = self._check_weights(folder)
        engine = Engine.load(folder, self._settings, self._layout.rank, memory=self._memory)
        self._check_weights(folder)  # the files may have been replaced while they were read
        return_memory()
        return engine

    def _check_weights(self, folder: Path) -> Path:
        """Return the model's folder. Raises OtherWeights if its files are not the pinned ones.

        The model is resolved a second time, since a converted file gets another folder when it has changed back.
        """
        try:
            check_pin(self._model, folder, self._settings.cache_dir)
        except OtherWeights:
            folder = resolve_replaced(self._model, self._replaced, self._settings.cache_dir, log.info)
            check_pin(self._model, folder, self._settings.cache_dir)
        self._folder = folder
        return folder

    def _connect_ranks(self, epoch: str, meeting: str) -> None:
        """Leave the ranks of the former epoch, and connect to those of this one."""
        from services.engine.parallel.links import Links
        from services.engine.startup import devices

        number = _number(epoch)
        self._disconnect_ranks()
        self._links = Links(
            self._layout,
            self._node,
            meeting,
            epoch,
            lambda: self._expected > number,
            devices.choose_device(self._settings),
        )
        self._engine.link(self._links)
        self._warm_up = None  # all ranks must run the same iterations, whether they were warm or not

    def _disconnect_ranks(self) -> None:
        if self._links:
            self._links.close()
            self._links = None

    def _end_when_orphaned(self) -> None:
        """End this actor after `ORPHANED_AFTER` seconds without a sign of life from an owner. The seconds are counted,
        not measured, so that a process which was stopped does not take itself for an orphan."""
        while self._silence < ORPHANED_AFTER:
            time.sleep(1.0)
            self._silence += 1
        log.warning("no owner for %d s, ending", ORPHANED_AFTER)
        context = ray.get_runtime_context()
        group = ray.util.get_current_placement_group()
        if group is not None:
            # waits while the head cannot be reached; meanwhile Ray may have moved the engine to another node
            place = ray.util.placement_group_table(group)["bundles_to_node_id"].get(self._layout.rank)
            if place != context.get_node_id():
                os._exit(os.EX_OK)  # the group and the actor are those of the engine's new processes
        forget(self._name.rpartition("-")[0])
        # both actors go before the group: Ray would restart one whose group is gone, and wait for the group for ever
        with contextlib.suppress(ValueError):  # it is gone
            ray.kill(ray.get_actor(self._other, namespace=context.namespace), no_restart=True)
        ray.kill(context.current_actor, no_restart=True)
        if group is not None:
            ray.util.remove_placement_group(group)
