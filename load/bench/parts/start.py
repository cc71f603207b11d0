"""How long `orca serve` takes to be ready, the first time and later, and the processor time until then."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from load.options import Options, model_folder
from load.report import table
from load.server import OrcaServer

ROUNDS = 3
LOOK = 0.05  # seconds between checks for spares
SHOWN = 0.5  # processor seconds; processes with less are not shown


def run(options: Options) -> str:
    flags = ["--model", str(model_folder(options)), "--device", options.device, "--dtype", options.dtype]
    with tempfile.TemporaryDirectory() as cache:
        first, *later = [_start([*flags, "--cache-dir", cache]) for _ in range(1 + ROUNDS)]
    rows = [(name, first[name], statistics.median(some.get(name, 0.0) for some in later)) for name in first]
    return (
        "Seconds from the command to `ready` and to both spares, and processor seconds until then of the processes "
        "that run then, both of a kind together. The first start compiles the kernels, and its engine reads the "
        f"model's config with transformers; later ones are the median of {ROUNDS}.\n\n"
        + table(["", "first", "later"], [[name, f"{a:.1f}", f"{b:.1f}"] for name, a, b in rows if max(a, b) >= SHOWN])
    )


def _start(flags: list[str]) -> dict[str, float]:
    """Seconds until it is ready and until it has spares; processor seconds until then, in all and by process."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as data, OrcaServer(Path(data), *flags) as server:
        ready = time.monotonic() - began
        while not server.has_spares():
            time.sleep(LOOK)
        spares, spent = time.monotonic() - began, server.cpu_seconds()
        server.end()
    costliest = sorted(spent.items(), key=lambda item: -item[1])
    return {"ready": ready, "spares": spares, "processor time": sum(spent.values()), **dict(costliest)}
