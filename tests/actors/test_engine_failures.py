"""When the failures of engines end a start, and what is said of a process that died."""

from __future__ import annotations

import subprocess
import sys

import pytest

from actors.cluster.engine_failures import (
    MOST_FAILURES,
    EngineFailure,
    StartFailures,
    count_oom_kills,
    reason_of_death,
)
from services.errors import EngineLost, ModelError


def fail(failures: StartFailures, engine: int, times: int, rank: int = 0) -> None:
    for number in range(times):
        failures.add(EngineFailure(engine, f"engine-{engine}-{rank}-a", 100 + number, "OSError: no space"))


def test_an_engine_that_fails_again_and_again_ends_the_start_with_its_last_reason() -> None:
    failures = StartFailures()
    failures.check([0])
    fail(failures, 0, MOST_FAILURES - 1)
    failures.check([0])
    fail(failures, 0, 1)
    with pytest.raises(EngineLost, match=f"engine has failed {MOST_FAILURES} times in a row; at last, .*OSError: no"):
        failures.check([0])


def test_an_engine_that_has_failed_less_often_may_still_be_ready() -> None:
    failures = StartFailures()
    fail(failures, 0, 10)
    failures.check([0, 1])
    fail(failures, 1, MOST_FAILURES - 1)
    failures.check([0, 1])
    fail(failures, 1, 1)
    with pytest.raises(EngineLost, match=f"each of the 2 engines has failed {MOST_FAILURES} times"):
        failures.check([0, 1])


def test_ranks_that_fail_together_are_one_failure_of_their_engine() -> None:
    failures = StartFailures()
    for rank in (0, 1):
        fail(failures, 0, MOST_FAILURES - 1, rank)
    failures.check([0])


def test_a_refusal_ends_the_start_at_once() -> None:
    with pytest.raises(ModelError, match=r"^not served$"):
        StartFailures().add(EngineFailure(0, "engine-0-0-a", 1, "not served", refused=True))


def test_a_failure_names_reason_and_log() -> None:
    line = str(EngineFailure(1, "engine-1-0-a", 42, "MemoryError"))
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
