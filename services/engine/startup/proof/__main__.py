"""The process of a trial: `python -m services.engine.startup.proof FOLDER`, with the settings as JSON on stdin.

It is a process of its own because wrong kernels may kill it, and because transformers takes time and memory that the
engine needs. The last line of its output is the result.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from services.engine.settings import EngineSettings
from services.engine.startup import devices


def result_of(folder: Path, settings: EngineSettings) -> dict[str, Any]:
    """The `difference` of the trial, or an `error`: whatever the fast path raises is why it does not serve."""
    try:
        devices.set_threads(settings)
        from services.engine.startup.proof.trial import trial  # here, so that what the import raises is a result, too

        return {"difference": trial(folder, settings)}
    except Exception as error:
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:1000]}


if __name__ == "__main__":
    print(json.dumps(result_of(Path(sys.argv[1]), EngineSettings.from_json(sys.stdin.read()))), flush=True)
