"""Runs the converter in a process of its own, so that the caller never holds torch or a second copy of the weights.

The converter is another module because this one is imported together with its package: `python -m` would run it twice.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from services.child_environment import without_settings
from services.errors import ModelError
from services.models.cache import Progress
from services.progress import Bar

WARNING = "warning.txt"  # a file of the target: a line that is shown whenever the model is served
COUNT = "count "  # begins a line of the converter `count DONE TOTAL WHAT`


def convert(source: Path, target: Path, progress: Progress) -> None:
    """Convert `source` (a GGUF file or a transformers folder) to a folder with weights and tokenizer.json.

    Raises ModelError with the last line that the converter wrote to stderr.
    """
    command = [sys.executable, "-m", "services.models.converter", str(source), str(target)]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        with subprocess.Popen(
            command, env=without_settings(), stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdout is not None
            try:
                _report(process.stdout, progress)
            except BaseException:
                process.kill()
                raise
        if process.returncode == 0:
            return
        errors.seek(0)
        words = [line.strip() for line in errors if line.strip()]
    why = words[-1] if words else f"the converter ended with status {process.returncode}"
    raise ModelError(f"{source} cannot be converted: {why}")


def _report(lines: Iterable[str], progress: Progress) -> None:
    """Pass on what the converter says, and draw a bar while it counts."""
    with contextlib.ExitStack() as shown:
        counted, bar = "", None
        for line in lines:
            if not line.startswith(COUNT):
                progress(line.rstrip())
                continue
            _, done, total, what = line.rstrip().split(" ", 3)
            if bar is None or what != counted:
                shown.close()
                counted, bar = what, shown.enter_context(Bar(desc=what, total=int(total), unit="tensors", say=progress))
            bar.reach(int(done))
