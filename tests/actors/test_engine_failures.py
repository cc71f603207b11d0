"""When the failures of engines end a start, and what is said of a process that died."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from actors.cluster.engine_failures import (
    MOST_FAILURES,
    EngineFailure,
    EngineWatch,
    StartFailures,
    count_oom_kills,
    reason_of_death,
)
from actors.cluster.environment import mark_of
from actors.cluster.process import _watch_engines
from actors.engine_processes import reason_of
from actors.engine_record import forget, note, records_in
from load.server import ROOT
from services.errors import EngineLost, ModelError


def fail(failures: StartFailures, engine: int, times: int, rank: int = 0) -> None:
    for number in range(times):
        failures.add(EngineFailure(str(engine), f"engine-{engine}-{rank}-a", 100 + number, "OSError: no space"))


def test_an_engine_that_fails_again_and_again_ends_the_start_with_its_last_reason() -> None:
    failures = StartFailures()
    failures.check(["0"])
    fail(failures, 0, MOST_FAILURES - 1)
    failures.check(["0"])
    fail(failures, 0, 1)
    with pytest.raises(EngineLost, match=f"engine has failed {MOST_FAILURES} times in a row; at last, .*OSError: no"):
        failures.check(["0"])


def test_an_engine_that_has_failed_less_often_may_still_be_ready() -> None:
    failures = StartFailures()
    fail(failures, 0, 10)
    failures.check(["0", "1"])
    fail(failures, 1, MOST_FAILURES - 1)
    failures.check(["0", "1"])
    fail(failures, 1, 1)
    with pytest.raises(EngineLost, match=f"each of the 2 engines has failed {MOST_FAILURES} times"):
        failures.check(["0", "1"])


def test_ranks_that_fail_together_are_one_failure_of_their_engine() -> None:
    failures = StartFailures()
    for rank in (0, 1):
        fail(failures, 0, MOST_FAILURES - 1, rank)
    failures.check(["0"])


def test_a_refusal_ends_the_start_at_once() -> None:
    with pytest.raises(ModelError, match=r"^not served$"):
        StartFailures().add(EngineFailure("0", "engine-0-0-a", 1, "not served", refused=True))


def test_a_refusal_of_an_added_model_is_only_said() -> None:
    """The others are served: without the server, its operator could not remove the model."""
    said, ready = list[str](), threading.Event()
    refused = EngineFailure("m3fa9c1.0", "engine-m3fa9c1.0-0-a", 7, "its files have changed", refused=True)

    def send(says: str) -> None:
        said.append(says)
        ready.set()

    pipe: Any = SimpleNamespace(send=send, reporting=contextlib.nullcontext)
    watch: Any = SimpleNamespace(look=lambda: [refused])
    _watch_engines(pipe, watch, {"", "000000"}, True, ready)
    assert said == [str(refused)]
    with pytest.raises(ModelError):
        StartFailures().add(refused)


def test_a_failure_names_reason_and_log() -> None:
    line = str(EngineFailure("1", "engine-1-0-a", 42, "MemoryError"))
    assert line == "engine 1 failed: MemoryError; its log is worker-*-42.err"


def test_the_log_of_a_process_that_crashed_says_how() -> None:
    crash = "import faulthandler; faulthandler.enable(); faulthandler._sigsegv()"
    log = subprocess.run([sys.executable, "-c", crash], stderr=subprocess.PIPE, text=True, check=False).stderr
    assert reason_of_death(log, 0) == "its process crashed: Segmentation fault"
    raylet = "*** SIGILL received at time=1795647689 on cpu 1 ***\n"
    assert reason_of_death(raylet, 0) == "its process crashed: SIGILL"


def test_a_process_that_left_no_word_was_perhaps_killed_for_lack_of_memory() -> None:
    assert count_oom_kills() >= 0
    assert reason_of_death("INFO loading", 0) == "its process was killed, or ended itself, without a message"
    assert "2 processes killed for lack of memory" in reason_of_death("INFO loading", 2)


PROCESS = """
import sys
from actors.engine_processes import reason_of
from actors.engine_record import EngineRecord
from services.errors import LaterEpoch, ModelError, NoRoom
record = EngineRecord("engine-7-0-a")
print("began", flush=True)
for line in sys.stdin:
    try:
        with record.noting():
            exec(line)
    except Exception:
        print("noted", flush=True)
"""


class EngineProcess:
    """A process with a record, which executes lines of code."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", PROCESS]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.pid = self.process.pid
        self.answer()

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def do(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        assert self.answer() == "noted\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineWatch:
    monkeypatch.setenv(*mark_of(tmp_path).split("=", 1))
    return EngineWatch(records_in(tmp_path), tmp_path)


@pytest.fixture
def engine(watch: EngineWatch) -> Iterator[EngineProcess]:
    process = EngineProcess()
    yield process
    process.kill()


def failure(engine: EngineProcess, reason: str, refused: bool = False) -> EngineFailure:
    return EngineFailure("7", "engine-7-0-a", engine.pid, reason, refused)


def test_an_exception_counts_when_the_process_is_dead_and_once(watch: EngineWatch, engine: EngineProcess) -> None:
    engine.do("raise OSError(28, 'No space')")
    assert watch.look() == []  # its scheduler kills it
    note([engine.pid], "the engine failed")
    engine.kill()
    assert watch.look() == [failure(engine, "OSError: [Errno 28] No space")]
    assert watch.look() == []


def test_a_refusal_counts_at_once_and_another_owner_is_none(watch: EngineWatch, engine: EngineProcess) -> None:
    engine.do("raise LaterEpoch('a later owner', 3)")
    assert watch.look() == []
    engine.do("raise ModelError('not served')")
    assert watch.look() == [failure(engine, "not served", refused=True)]
    engine.kill()
    assert watch.look() == []


def test_an_engine_that_waits_for_memory_has_not_failed(watch: EngineWatch, engine: EngineProcess) -> None:
    engine.do("raise NoRoom('other engines have the memory')")
    engine.do("raise OSError(28, 'No space')")
    engine.kill()
    assert watch.look() == [failure(engine, "OSError: [Errno 28] No space")]


def test_what_a_scheduler_says_of_a_process_that_it_kills(watch: EngineWatch, engine: EngineProcess) -> None:
    note([engine.pid, os.getpid()], "an engine did not answer for 60 s")
    engine.kill()
    assert watch.look() == [failure(engine, "an engine did not answer for 60 s")]


def test_ranks_that_are_killed_have_the_reason_of_the_one_that_failed() -> None:
    lost = EngineLost("the engine failed: a traceback")
    lost.__cause__ = RayTaskError("serve", "a\nlong\ntraceback", OverflowError("too far"))
    assert reason_of(lost) == "OverflowError: too far"
    assert reason_of(EngineLost("an engine did not answer for 60 s")) == "an engine did not answer for 60 s"


def test_clients_read_neither_tracebacks_nor_addresses_of_ray() -> None:
    lost = EngineLost("the engine is gone: The actor died unexpectedly.\n\tip: 10.1.2.3")
    assert reason_of(lost) == "the engine is gone: The actor died unexpectedly."
    refused = ModelError("its files\nare gone")
    refused.__cause__ = RayTaskError("serve", "a\nlong\ntraceback", ModelError("its files\nare gone"))
    assert reason_of(refused) == "its files are gone"


def test_without_a_word_its_log_says_more(watch: EngineWatch, engine: EngineProcess, tmp_path: Path) -> None:
    (tmp_path / f"worker-0a-01-{engine.pid}.err").write_text("*** SIGILL received at time=1\n")
    engine.kill()
    assert watch.look() == [failure(engine, "its process crashed: SIGILL")]


def test_where_nothing_can_be_written_a_failure_counts_all_the_same(watch: EngineWatch, engine: EngineProcess) -> None:
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"
    engine.do(f"{limit}; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); raise OverflowError('unsaid')")
    engine.kill()
    (found,) = watch.look()
    assert (found.pid, "unsaid" in found.reason) == (engine.pid, False)


def test_an_engine_that_is_removed_has_not_failed(watch: EngineWatch, engine: EngineProcess) -> None:
    forget("engine-7-")
    engine.kill()
    assert watch.look() == []


def test_in_a_cluster_without_a_folder_there_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_SERVE_HAPROXY_CONFIG_FILE_LOC", raising=False)
    engine = EngineProcess()
    engine.do("raise ModelError('not served')")
    note([engine.pid], "killed")
    forget("engine-")
    engine.kill()
