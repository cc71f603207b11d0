"""A trial by a process that has imported transformers for something else, before an engine asks for its verdict. Spec
and fit of the model are kept on the way.

If the fast path kills the process, there is no verdict: the engine lets `run_trial` find out why.
"""

from __future__ import annotations

from pathlib import Path

from services.engine.settings import EngineSettings
from services.engine.startup.proof.__main__ import result_of
from services.engine.startup.proof.verdict import Verdict, judged, proven, read_settings


def main(folder: str, written: str) -> None:
    """`written`: EngineSettings as JSON."""
    proven(Path(folder), read_settings(written), _run)


def _run(folder: Path, settings: EngineSettings) -> Verdict:
    return judged(result_of(folder, settings), settings)
