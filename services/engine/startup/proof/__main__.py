"""The process of a trial: `python -m services.engine.startup.proof FOLDER`, with the settings as JSON on stdin.

It is a process of its own because wrong kernels may kill it, and because transformers takes time and memory that the
engine needs. The last line of its output is the result.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from services.engine.startup import devices
from services.engine.startup.proof.verdict import read_settings


def main(folder: Path) -> str:
    """The result: a JSON object with `difference`, or with `error`."""
    settings = read_settings(sys.stdin.read())
    devices.set_threads(settings)
    from services.engine.startup.proof.trial import trial  # here, so that what the import raises is a result, too

    return json.dumps({"difference": trial(folder, settings)})


if __name__ == "__main__":
    try:
        result = main(Path(sys.argv[1]))
    except Exception as error:  # whatever the fast path raises is why it does not serve
        result = json.dumps({"error": " ".join(f"{type(error).__name__}: {error}".split())[:1000]})
    print(result, flush=True)
