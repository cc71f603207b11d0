"""Runs the converter in a process of its own, so that the caller never holds torch or a second copy of the weights.

The converter is another module because this one is imported together with its package: `python -m` would run it twice.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path

from services.background import daemon_thread
from services.child_environment import without_settings
from services.errors import ModelError
from services.models.cache import Progress
from services.progress import Bar

WARNING = "warning.txt"  # a file of the target: a line that is shown whenever the model is served
COUNT = "count "  # begins a line of the converter `count DONE TOTAL WHAT`
CONVERTED = "converted"  # the line after which the converter waits for more work, or for the end of its input

_kept: ContextVar[list[subprocess.Popen[str]] | None] = ContextVar("converters", default=None)


@contextlib.contextmanager
def more_work() -> Iterator[list[subprocess.Popen[str]]]:
    """Meanwhile, a converter stays after its work and is appended to the list: it has imported torch and transformers,
    which takes seconds, and can `go_on` with what needs them, too."""
    converters: list[subprocess.Popen[str]] = []
    token = _kept.set(converters)
    try:
        yield converters
    finally:
        _kept.reset(token)
        for each in converters:
            assert each.stdin is not None
            with contextlib.suppress(OSError):  # it has died
                each.stdin.close()


def go_on(converter: subprocess.Popen[str], module: str, *arguments: str) -> None:
    """Let a converter that was kept call `main` of this module. Nobody waits for it, or learns whether it fails."""
    assert converter.stdin is not None
    with contextlib.suppress(OSError):  # it has died
        converter.stdin.write(json.dumps([module, *arguments]))


def convert(source: Path, target: Path, progress: Progress) -> None:
    """Convert `source` (a GGUF file or a transformers folder) to a folder with weights and tokenizer.json.

    Raises ModelError with the last line that the converter wrote to stderr.
    """
    command = [sys.executable, "-m", "services.models.converter", str(source), str(target)]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command, env=without_settings(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            converted = _report(process.stdout, progress)
        except BaseException:
            process.kill()
            process.wait()
            raise
        process.stdout.close()
        if converted and (kept := _kept.get()) is not None:
            kept.append(process)
            daemon_thread(process.wait)
            return
        process.stdin.close()
        if process.wait() == 0:
            return
        errors.seek(0)
        words = [line.strip() for line in errors if line.strip()]
    why = words[-1] if words else f"the converter ended with status {process.returncode}"
    raise ModelError(f"{source} cannot be converted: {why}")


def _report(lines: Iterable[str], progress: Progress) -> bool:
    """Pass on what the converter says, and draw a bar while it counts. Returns whether it has converted the model."""
    with contextlib.ExitStack() as shown:
        counted, bar = "", None
        for line in lines:
            if line.rstrip() == CONVERTED:
                return True
            if not line.startswith(COUNT):
                progress(line.rstrip())
                continue
            _, done, total, what = line.rstrip().split(" ", 3)
            if bar is None or what != counted:
                shown.close()
                counted, bar = what, shown.enter_context(Bar(desc=what, total=int(total), unit="tensors", say=progress))
            bar.reach(int(done))
    return False
