"""How long `orca serve` takes to be ready and to have its spares, the first time and later."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence

from load.evaluation.bench import Bench, Found
from load.options import model_folder

HELP = "seconds from the command `orca serve` to `ready` and to its spares, with an empty cache and with a full one"
LOOK = 0.05  # seconds between checks for spares
STEP = re.compile(r"\[ *([\d.]+) s\] (starting [^,\n]+)")
SECONDS = "Seconds from the command, and of processors"


def measure(bench: Bench) -> Found:
    model_folder(bench.options)  # downloads it before the first start
    with tempfile.TemporaryDirectory() as cache:
        starts = {name: _start(bench, cache) for name in ("first", "later")}
    rows = {what: {name: took[what] for name, took in starts.items() if what in took} for what in starts["later"]}
    return Found({SECONDS: rows})


def _start(bench: Bench, cache: str) -> dict[str, float]:
    """Seconds until each step, until it is ready and until it has spares, and processor seconds until then."""
    began = time.monotonic()
    with bench.server("--cache-dir", cache, spares=False) as server:
        ready = time.monotonic() - began
        while not server.has_spares():
            time.sleep(LOOK)
        spares = time.monotonic() - began
        spent = sum(server.processor_seconds().values())
        server.end()
    return printed(server.lines) | {"ready": ready, "spares": spares, "processor time": spent}


def printed(lines: Sequence[str]) -> dict[str, float]:
    """The times of the steps that the command printed."""
    found = [match for line in lines if (match := STEP.match(line))]
    return {match[2]: float(match[1]) for match in found}
