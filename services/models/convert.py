"""Runs the converter in a process of its own, so that the caller never holds torch or a second copy of the weights."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from services.child_environment import without_settings
from services.errors import ModelError
from services.models.cache import Progress

_ROOT = Path(__file__).parents[2]


def convert(source: Path, target: Path, progress: Progress) -> None:
    """Write `source` (a GGUF file or a transformers folder) as a folder with safetensors and tokenizer.json.

    Raises ModelError with the converter's last words.
    """
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "services.models.converter", str(source), str(target)]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        with subprocess.Popen(
            command, env=without_settings() | {"PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    progress(line.rstrip())
            except BaseException:
                process.kill()
                raise
        if process.returncode == 0:
            return
        errors.seek(0)
        words = [line.strip() for line in errors if line.strip()]
    why = words[-1] if words else f"the converter ended with status {process.returncode}"
    raise ModelError(f"{source} cannot be converted: {why}")
