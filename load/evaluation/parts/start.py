"""How long `orca serve` takes to be ready, the first time and later, and what it waits for."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence

from load.evaluation.bench import Bench, Found, Plots
from load.options import model_folder
from load.processes import processor_seconds, stat_of, title_of
from load.report import Table

HELP = "seconds from the command `orca serve` to `ready` and to its spares, with an empty cache and with a full one"
LOOK = 0.05  # seconds between checks for spares
SHOWN = 0.2  # processor seconds; processes with less are not shown
STEP = re.compile(r"\[ *([\d.]+) s\] (starting [^,\n]+|ready)")
SECONDS, STEPS = "Seconds from the command", "A later start by its processes, seconds from the command"


def measure(bench: Bench) -> Found:
    model_folder(bench.options)  # downloads it before the first start
    with tempfile.TemporaryDirectory() as cache:
        first, _ = _start(bench, cache)
        later, steps = _start(bench, cache)
    seconds = {name: {"first": first[name], "later": later[name]} for name in first}
    return Found({SECONDS: seconds, STEPS: steps})


def plots(found: Found) -> Plots:
    return {}


def _start(bench: Bench, cache: str) -> tuple[dict[str, float], Table]:
    """Seconds until it is ready and until it has spares, and processor seconds; and its steps."""
    began = time.monotonic()
    with bench.server("--cache-dir", cache, spares=False) as server:
        ready = time.monotonic() - began
        while not server.has_spares():
            time.sleep(LOOK)
        spares = time.monotonic() - began
        pids = [server.process.pid, *server.descendants()]
        steps = _processes(pids) | printed(server.lines)
        spent = sum(processor_seconds(pids).values())
        server.end()
    ordered = dict(sorted(steps.items(), key=lambda step: step[1]["at"]))
    return {"ready": ready, "spares": spares, "processor time": spent}, ordered


def printed(lines: Sequence[str]) -> Table:
    """The steps that the command printed, with their times."""
    found = [match for line in lines if (match := STEP.match(line))]
    return {f"*{match[2]}*": {"at": float(match[1])} for match in found}


def _processes(pids: Sequence[int]) -> Table:
    """When the processes of each title began, seconds after the first of `pids`, and their processor seconds."""
    command = stat_of(pids[0])
    assert command is not None, "the command runs"
    rows: Table = {}
    for pid in pids:
        if stat := stat_of(pid):
            row = rows.setdefault(short(title_of(pid)), {"at": stat.began - command.began, "processor seconds": 0.0})
            row["at"] = min(row["at"], stat.began - command.began)
            row["processor seconds"] += stat.processor
    return {title: row for title, row in rows.items() if row["processor seconds"] >= SHOWN}


def short(title: str) -> str:
    """A title without its arguments: `ray::EngineActor`, `cli serve`, `raylet`, `dashboard.py`."""
    words = title.split() or ["(ended)"]
    if "-m" in words[:-1]:
        at = words.index("-m")
        return " ".join(words[at + 1 : at + 3]) if words[at + 1] == "cli" else words[at + 1]
    script = next((word for word in words[1:3] if word.endswith(".py")), "") if "python" in words[0] else ""
    name = (script or words[0]).rpartition("/")[2] if not title.startswith("ray::") else words[0]
    return name.partition(".")[0] if name.startswith("ray::") else name
