"""How long `orca serve` takes to be ready, the first time and later, and what its processes cost until then."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from load.markdown import table
from load.options import Options
from load.server import OrcaServer
from services.models import resolve

ROUNDS = 3
LOOK = 0.05  # seconds between questions whether there are spares


def run(options: Options) -> str:
    folder = resolve(options.model, options.cache_dir)
    flags = ["--model", str(folder), "--device", options.device, "--dtype", options.dtype]
    with tempfile.TemporaryDirectory() as cache:
        starts = [_start([*flags, "--cache-dir", cache]) for _ in range(1 + ROUNDS)]
    rows = []
    for name, some in (("first", starts[:1]), ("later", starts[1:])):
        ready, spares, total = (statistics.median(values) for values in zip(*(s[:3] for s in some), strict=True))
        rows.append([name, f"{ready:.1f}", f"{spares:.1f}", f"{total:.0f}"])
    spent = starts[-1][3]
    costs = [[title, f"{spent[title]:.1f}"] for title in sorted(spent, key=lambda t: -spent[t]) if spent[title] >= 0.5]
    return (
        "Seconds from the command to `ready`, and to both spares. The first start compiles the kernels and reads the "
        f"model's config with transformers; later ones are the median of {ROUNDS}. Processor time is of all processes "
        "that run then, in seconds.\n\n"
        f"{table(['start', 'ready', 'spares', 'processor time'], rows)}\n\n"
        f"Processor seconds of the last start by process, both of a kind together.\n\n{table(['process', 's'], costs)}"
    )


def _start(flags: list[str]) -> tuple[float, float, float, dict[str, float]]:
    """Seconds until ready, and until there are spares; processor seconds until then, all and by process."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as data, OrcaServer(Path(data), *flags) as server:
        ready = time.monotonic() - began
        while not server.has_spares():
            time.sleep(LOOK)
        spares = time.monotonic() - began
        spent = server.cpu_seconds()
        server.end()
    return ready, spares, sum(spent.values()), spent
