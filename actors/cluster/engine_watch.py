"""EngineWatch: which processes of engines have died while a cluster starts, by Ray's tables of actors and workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray._private.state import state
from ray.core.generated import common_pb2, gcs_pb2

from actors.cluster.engine_failures import EngineFailure, count_oom_kills, reason_of_death
from actors.failure_notes import FailureNote, read_note
from actors.placement import engine_actors, engine_index

_common: Any = common_pb2  # their messages are made when they are imported
_gcs: Any = gcs_pb2
OUT_OF_MEMORY = _common.WorkerExitType.Value("NODE_OUT_OF_MEMORY")  # Ray's monitor of memory has killed it


class EngineWatch:
    """Looks at the engines of a cluster whose processes write their logs to the folder `logs`."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._oom_kills = count_oom_kills()
        self._actors: dict[Any, str] = {}  # names by id, of all that were seen: one that is gone has no name
        self._seen: set[bytes] = set()  # ids of the workers that have died

    def look(self) -> list[EngineFailure]:
        """The failures since the last look. Raises RayError if the GCS cannot be reached."""
        self._actors |= {actor._actor_id: name for name, actor in engine_actors().items()}
        notes = {engine: read_note(engine) for engine in {engine_index(name) for name in self._actors.values()}}
        found: list[EngineFailure] = []
        for id, name in self._actors.items():
            found += self._failures_of(id, name, notes[engine_index(name)])
        return found

    def _failures_of(self, id: Any, name: str, note: FailureNote | None) -> Iterator[EngineFailure]:
        engine = engine_index(name)
        table = _gcs.ActorTableData.FromString(state.get_actor_info(id) or b"")
        if note and note.refused:
            yield EngineFailure(engine, name, table.pid, note.reason, refused=True)
        if error := table.death_cause.creation_task_failure_context.formatted_exception_string:
            *_, last = error.strip().splitlines()  # of the traceback: the type and the message
            yield EngineFailure(engine, name, table.pid, last.partition(": ")[2] or last, refused=True)
        for incarnation in table.previous_incarnations:
            if incarnation.worker_id not in self._seen:
                self._seen.add(incarnation.worker_id)
                yield self._failure(engine, name, incarnation.worker_id, note)

    def _failure(self, engine: int, actor: str, worker: bytes, note: FailureNote | None) -> EngineFailure:
        found = state._connect_and_get_accessor().get_worker_info(ray.WorkerID(worker))
        table = _gcs.WorkerTableData.FromString(found or b"")
        if note and table.pid in note.pids:
            return EngineFailure(engine, actor, table.pid, note.reason)
        if table.exit_type == OUT_OF_MEMORY:
            detail = " ".join(table.exit_detail.split())
            return EngineFailure(engine, actor, table.pid, f"Ray ended its process: {detail}")
        log = "".join(file.read_text(errors="replace") for file in self._logs.glob(f"worker-{worker.hex()}-*.err"))
        return EngineFailure(engine, actor, table.pid, reason_of_death(log, count_oom_kills() - self._oom_kills))
