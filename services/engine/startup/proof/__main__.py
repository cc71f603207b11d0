"""The process of a trial: `python -m services.engine.startup.proof FOLDER`, the settings as JSON on stdin.

It is a process of its own because kernels that are wrong for a device may end it, and because transformers takes time
and memory that an engine has other use for. The last line of its output says how the trial went.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from services.engine.startup import devices
from services.engine.startup.proof.verdict import read_settings


def main(folder: Path) -> str:
    """What is to be said: a JSON object with `difference`, or with `error`."""
    settings = read_settings(sys.stdin.read())
    devices.set_threads(settings)
    from services.engine.startup.proof.trial import trial  # not before: what it raises is an answer, too

    return json.dumps({"difference": trial(folder, settings)})


if __name__ == "__main__":
    try:
        said = main(Path(sys.argv[1]))
    except Exception as error:  # whatever the lean path raises is why it does not serve
        said = json.dumps({"error": " ".join(f"{type(error).__name__}: {error}".split())[:1000]})
    print(said, flush=True)
