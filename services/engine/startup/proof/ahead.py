"""What an engine needs to know of a model once, made by one process, which imports transformers for it: spec, fit, and
the trial of the fast path. All are kept; if that process fails, or the fast path kills it, the engine makes them.

`python -m services.engine.startup.proof.ahead FOLDER SETTINGS`, with EngineSettings as JSON; or a process that has
imported transformers for something else calls `main`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from services.background import daemon_thread
from services.child_environment import without_settings
from services.engine.families.kept import is_kept
from services.engine.settings import EngineSettings
from services.models.convert import go_on

MODULE = "services.engine.startup.proof.ahead"


def start_ahead(folder: Path, settings: EngineSettings, converters: Sequence[subprocess.Popen[str]]) -> None:
    """Begin to make what is not kept before an engine asks for it: in the last of these converters, which were kept, or
    in a process of its own. Raises ModelError."""
    if not settings.fast_path or is_kept(folder, settings.cache_dir):
        return
    if converters:
        go_on(converters[-1], MODULE, str(folder), settings.to_json())
    else:
        daemon_thread(_run_process, folder, settings)


def make_what_is_not_kept(folder: Path, settings: EngineSettings) -> None:
    """Let a process make what is not kept, or wait for one that does. Raises ModelError."""
    if settings.fast_path and not is_kept(folder, settings.cache_dir):
        _run_process(folder, settings)


def _run_process(folder: Path, settings: EngineSettings) -> None:
    command = [sys.executable, "-m", MODULE, str(folder), settings.to_json()]
    subprocess.run(command, env=without_settings(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main(folder: str, written: str) -> None:
    settings = EngineSettings.from_json(written)
    fits = settings.cache_dir / "fits"
    fits.mkdir(parents=True, exist_ok=True)
    with FileLock(fits / "lock"):  # before anything is imported for seconds
        if not is_kept(Path(folder), settings.cache_dir):
            from services.engine.startup.proof.__main__ import result_of
            from services.engine.startup.proof.verdict import judged, proven

            proven(Path(folder), settings, lambda *of: judged(result_of(*of), settings))


if __name__ == "__main__":
    main(*sys.argv[1:])
