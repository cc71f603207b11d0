"""The account of a machine's memory, kept by processes that may die at any moment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.engine import EngineActor
from actors.engine_build import engine_settings
from actors.memory_account import MemoryAccount
from services import memory
from services.errors import ModelError, OtherWeights
from services.memory import Share
from services.settings.sources import load

HOLD = """
import sys
from pathlib import Path
from actors.memory_account import MemoryAccount
account = MemoryAccount(Path(sys.argv[1]), sys.argv[2], sys.argv[3], 10, 0.0)
print(account.take(int(sys.argv[4])), flush=True)
sys.stdin.read()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts another process of an engine, which takes memory and holds it."""
    processes: list[subprocess.Popen[str]] = []

    def begin(engine: str, model: str, bytes: int, took: bool = True) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", HOLD, str(tmp_path), engine, model, str(bytes)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout
        assert process.stdout.readline().strip() == str(took)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def account(folder: Path, engine: str = "engine-b", model: str = "b", bytes: int = 10) -> MemoryAccount:
    return MemoryAccount(folder, engine, model, bytes, 0.0, lambda: 7)


def test_a_share_ends_with_the_last_process_that_holds_it(tmp_path: Path, start: Start) -> None:
    one, spare = start("engine-a", "a", 6), start("engine-a", "a", 6)
    own = account(tmp_path)
    assert not own.take(6)
    one.kill()
    one.wait()
    assert not own.take(6)
    spare.kill()
    spare.wait()
    assert own.take(6)
    assert {file.name for file in tmp_path.iterdir()} == {"lock", f"engine-b.{os.getpid()}"}


def test_many_processes_at_once_never_take_more_than_there_is(tmp_path: Path) -> None:
    words = [[sys.executable, "-c", HOLD, str(tmp_path), f"engine-{n}", str(n), "3"] for n in range(6)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [subprocess.Popen(each, text=True, **pipes) for each in words]  # type: ignore[call-overload]
    took = [process.stdout.readline().strip() for process in processes]
    for process in processes:
        process.kill()
        process.wait()
    assert 1 <= took.count("True") <= 3  # a place in the queue is kept for the first


def test_a_wish_makes_an_idle_engine_leave_and_is_then_fulfilled(tmp_path: Path, start: Start) -> None:
    own = account(tmp_path)
    assert own.take(6)
    assert not own.leaves()
    waiting = start("engine-a", "a", 6, took=False)
    assert own.leaves()
    waiting.kill()
    waiting.wait()
    assert not own.leaves()
    own.release()
    start("engine-a", "a", 6)


def test_nobody_makes_room_for_an_engine_that_has_stopped_asking(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = account(tmp_path)
    assert own.take(6)
    assert not own.leaves()
    start("engine-a", "a", 6, took=False)
    assert own.leaves()
    began = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + 7.0)
    assert not own.leaves()


def test_an_engine_is_busy_as_long_as_its_iteration_takes(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "IDLE", 0.01)
    own = MemoryAccount(tmp_path, "engine-b", "b", 10, 1e6)
    assert own.take(6)
    assert not own.leaves()
    start("engine-a", "a", 6, took=False)
    with own.using():
        time.sleep(0.05)
        assert not own.leaves()
    time.sleep(0.05)
    assert own.leaves()


def test_a_process_that_has_let_go_gets_no_share_back(tmp_path: Path, start: Start) -> None:
    """Its watch may ask just then, while the spare of the engine still has a share."""
    own, spare = account(tmp_path), start("engine-b", "b", 6)
    assert own.take(6)
    own.release()
    assert not own.leaves()
    spare.kill()
    spare.wait()
    start("engine-a", "a", 6)


def test_an_entry_never_takes_more_of_the_disk_than_at_first(tmp_path: Path, start: Start) -> None:
    """A full disk ends no engine: its entry is written where it was, and the disk was not full when it began."""
    own = account(tmp_path)
    (file,) = tmp_path.glob("engine-b.*")
    size = file.stat().st_size
    assert own.take(6)
    assert not own.leaves()
    assert file.stat().st_size == size > 0
    own.release()
    assert file.stat().st_size == size
    start("engine-a", "a", 6)


def test_a_spare_that_has_just_taken_over_is_not_idle(tmp_path: Path, start: Start) -> None:
    """It has run nothing yet, and its engine has long been ready."""
    now, spare = time.monotonic(), MemoryAccount(tmp_path, "engine-b", "b", 10, 1e6)
    with spare.using():  # long ago
        assert not spare.leaves()
    spare._used = now - 2000
    spare.release()
    with spare._locked():
        spare._write(Share("engine-b", "b", 6, since=now - 1000, used=now))
    assert spare.join()
    start("engine-a", "a", 6, took=False)
    assert not spare.leaves()


def test_a_spare_takes_over_though_the_files_of_the_model_are_gone(tmp_path: Path, start: Start) -> None:
    """What it holds is in memory, and the share with it."""
    spare, process = EngineActor.__new__(EngineActor), start("engine-b", "b", 6)
    spare._settings, spare._needs = engine_settings(load(device="cpu")), 0
    spare._account, spare._folder = account(tmp_path), tmp_path / "gone"
    spare._account.join()
    process.kill()
    process.wait()
    spare._wait_for_room("1:a")


def test_an_engine_that_refuses_the_files_of_its_model_takes_no_memory(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries again and again, and each time another engine would have to make room for it."""

    def refuse(self: EngineActor, folder: Path) -> Path:
        raise OtherWeights(f"{folder} has changed")

    monkeypatch.setattr(EngineActor, "_check_weights", refuse)
    engine = EngineActor.__new__(EngineActor)
    engine._account, engine._folder, engine._needs = account(tmp_path), tmp_path, 6
    with pytest.raises(OtherWeights):
        engine._wait_for_room("1:a")
    start("engine-a", "a", 6)


def test_what_loading_has_shown_counts(tmp_path: Path, start: Start) -> None:
    own = account(tmp_path)
    assert own.take(4)
    start("engine-a", "a", 4)
    assert own.settle(6)
    assert not own.settle(7)
    start("engine-c", "c", 6)


def test_an_engine_for_which_there_will_never_be_room_is_refused(tmp_path: Path) -> None:
    """Also if only loading has shown it."""
    own = account(tmp_path)
    with pytest.raises(ModelError, match=r"memory=0\.00 GiB: the engine takes 0\.00 GiB alone"):
        own.take(11)
    assert own.take(4)
    with pytest.raises(ModelError, match="raise memory"):
        own.settle(11)
    assert account(tmp_path / "found", bytes=0).take(11)


def test_without_the_setting_all_count_with_what_was_free_first(tmp_path: Path) -> None:
    assert account(tmp_path, bytes=0).bytes == 7
    assert MemoryAccount(tmp_path, "engine-a", "a", 0, 0.0, lambda: 8).bytes == 7
