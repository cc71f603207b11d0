"""What the Python scripts share: the server's address, and steps that say whether they passed."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

URL = os.environ["ORCA_URL"]
BASE_URL = URL + "/v1"
API_KEY = "none"
MODEL = os.environ["ORCA_MODEL"]
MODEL_FOLDER = os.environ["ORCA_MODEL_FOLDER"]
SCRATCH = Path(os.environ["ORCA_SCRATCH"])
# whether answers have reasoning: "no", "may" or "must"; a budget ends it, since a model of another family does not
REASONS = os.environ.get("ORCA_REASONS", "no")
BUDGET = {} if REASONS == "no" else {"thinking_token_budget": 12}
BIN = Path(sys.executable).parent

QUESTION = "What is the capital of France?"


def step(name: str) -> Callable[[Callable[[], Any]], None]:
    """Run the function, or the coroutine, now. It passes unless it raises; what it returns is the detail."""

    def do(function: Callable[[], Any]) -> None:
        try:
            result = function()
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
            say(name, True, str(result or ""))
        except Exception as error:
            traceback.print_exc()
            say(name, False, f"{type(error).__name__}: {error}")

    return do


def say(name: str, passed: bool, detail: str = "") -> None:
    line = {"step": name, "passed": passed, "detail": " ".join(detail.split())[:500]}
    print("\n" + json.dumps(line), flush=True)


def expect(condition: object, *seen: object) -> None:
    """Raises with what was seen when the condition does not hold."""
    if not condition:
        raise AssertionError(f"unexpected: {', '.join(map(repr, seen))}")


def raised(kind: type[Exception], call: Callable[..., object], /, **fields: Any) -> Any:
    """The error of this kind that the call raises. Raises if it raises none."""
    try:
        call(**fields)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} for {fields}")


def run(*command: object, timeout: float = 600, **environment: str) -> str:
    """What the command printed. Raises with its last lines when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        env=os.environ | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
        cwd=SCRATCH,
    )
    print(done.stdout, file=sys.stderr)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout[-400:]}")
    return done.stdout


@contextlib.contextmanager
def process(command: list[object], url: str, timeout: float = 180, **environment: str) -> Iterator[None]:
    """A server as a child process, from when `url` answers on."""
    child = subprocess.Popen(
        [str(word) for word in command],
        env=os.environ | environment,
        cwd=SCRATCH,
        stdout=sys.stderr,
        stderr=sys.stderr,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + timeout
        while not _answers(url):
            if child.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{command[0]} does not answer at {url}; exit status {child.poll()}")
            time.sleep(0.5)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
