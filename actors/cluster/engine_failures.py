"""The failures of engines before a server is ready for the first time: which there are, and when they end its start."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from actors.engine_record import reason_in
from actors.placement import label_of
from services.errors import EngineLost, ModelError
from services.pool.server.users import try_lock

MOST_FAILURES = 3
"""Times in a row. The second process may meet what the first one left, such as memory that is not free yet. The third
one meets what the second one met. Each of them takes as long as loading the weights."""
OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
SIGNAL = re.compile(r"\*\*\* (SIG[A-Z]+) received")  # by Ray's handler of fatal signals
FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)  # by Python's


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """A process of the engine with this label has failed. `actor` is the name of its actor, `pid` its process id."""

    engine: str  # its label
    actor: str
    pid: int
    reason: str
    refused: bool = False  # the engine refused the model, which another process would do too

    def __str__(self) -> str:
        return f"engine {self.engine} failed: {self.reason}; its log is worker-*-{self.pid}.err"


class StartFailures:
    """Counts failures until an engine is ready."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()  # by engine and actor: ranks of an engine fail together

    def add(self, failure: EngineFailure) -> None:
        """Raises ModelError with the engine's reason if it has refused the model."""
        if failure.refused:
            raise ModelError(failure.reason)
        self._counts[failure.engine, failure.actor] += 1
        self._last = failure

    def check(self, engines: Collection[str]) -> None:
        """Raises EngineLost if each of these engines has failed `MOST_FAILURES` times: none of them will be ready."""
        if engines and all(self._count(engine) >= MOST_FAILURES for engine in engines):
            each = "the engine has" if len(engines) == 1 else f"each of the {len(engines)} engines has"
            raise EngineLost(f"{each} failed {MOST_FAILURES} times in a row; at last, {self._last}")

    def _count(self, engine: str) -> int:
        return max((count for (label, _), count in self._counts.items() if label == engine), default=0)


class EngineWatch:
    """Looks at the engine processes with their records in the folder `records`, and their logs in `logs`."""

    def __init__(self, records: Path, logs: Path) -> None:
        self._records, self._logs = records, logs
        self._oom_kills = count_oom_kills()
        self._seen: set[str] = set()  # names of the records of failures

    def look(self) -> list[EngineFailure]:
        """The failures since the last look."""
        records = (record for record in self._records.glob("engine-*") if record.name not in self._seen)
        found = [failure for record in sorted(records) if (failure := self._failure(record))]
        self._seen |= {f"{failure.actor}.{failure.pid}" for failure in found}
        return found

    def _failure(self, record: Path) -> EngineFailure | None:
        """The failure of the process with this record; None if it has not failed."""
        try:
            with record.open("r+") as opened:
                died = try_lock(opened)
            reason = reason_in(record)
        except FileNotFoundError:  # its engine is not needed any more
            return None
        actor, _, pid = record.name.rpartition(".")
        engine = label_of(actor)
        if reason and (died or reason.refused):
            return EngineFailure(engine, actor, int(pid), reason.text, reason.refused)
        if not died:
            return None
        log = "".join(file.read_text(errors="replace") for file in self._logs.glob(f"worker-*-{pid}.err"))
        return EngineFailure(engine, actor, int(pid), reason_of_death(log, count_oom_kills() - self._oom_kills))


def reason_of_death(log: str, oom_kills: int) -> str:
    """Why a process has died that wrote this log. `oom_kills`: how many processes the kernel has killed meanwhile, as
    memory was short."""
    fatal, signal = FATAL.search(log), SIGNAL.search(log)
    if fatal or signal:
        named = [found[1] for found in (signal, fatal) if found]
        return f"its process crashed: {', '.join(named)}"
    if oom_kills:
        return f"its process was killed; the kernel reports {oom_kills} processes killed for lack of memory meanwhile"
    return "its process was killed, or ended itself, without a message"


def count_oom_kills() -> int:
    """How many processes the kernel of this machine has killed so far because memory was short."""
    found = OOM_KILLS.search(Path("/proc/vmstat").read_text())
    return int(found[1]) if found else 0
