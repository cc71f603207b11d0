"""The functions in which processes spend their processor time: Python's by py-spy, all others by perf."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

RATE = 200  # samples a second
FRAME = re.compile(r"^(?P<function>.+) \((?P<file>.+?)(?::\d+)?\)$")


def find(program: str) -> str | None:
    """`py-spy` or `perf`: beside this interpreter or on the path; None if it is not installed."""
    beside = Path(sys.executable).parent / program
    return str(beside) if beside.exists() else shutil.which(program)


class PySpy:
    """Samples the Python functions of some processes: those that hold the interpreter's lock, because py-spy takes
    threads that wait in C for running ones."""

    def __init__(self, program: str, pids: Iterable[int], seconds: float, folder: Path) -> None:
        self._files = {pid: folder / f"{pid}.raw" for pid in pids}
        common = ["record", "--nonblocking", "--gil", "-r", str(RATE), "-d", str(max(1, round(seconds))), "-f", "raw"]
        self._running = [
            subprocess.Popen([program, *common, "-p", str(pid), "-o", str(file)], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
            for pid, file in self._files.items()
        ]  # fmt: skip

    def counts(self) -> dict[int, Counter[str]]:
        """Samples by function and process, when all have ended; none of a process that could not be read."""
        for running in self._running:
            running.wait()
        return {pid: innermost(file.read_text().splitlines()) for pid, file in self._files.items() if file.exists()}


class Perf:
    """Samples the symbols of some processes, the kernel's too."""

    def __init__(self, program: str, pids: Iterable[int], seconds: float, folder: Path) -> None:
        self._program, self._file = program, folder / "perf.data"
        command = [program, "record", "-e", "cpu-clock", "-F", str(RATE), "-o", str(self._file)]
        command += ["-p", ",".join(map(str, pids)), "--", "sleep", str(seconds)]
        self._running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def symbols(self) -> list[tuple[float, str, str, str]]:
        """Per cent of the samples, process, library and symbol, the largest first."""
        self._running.wait()
        command = [self._program, "report", "-i", str(self._file), "--stdio", "-F", "overhead,comm,dso,symbol"]
        done = subprocess.run([*command, "-t", ";", "-q"], capture_output=True, text=True, check=False)
        return symbols(done.stdout.splitlines())


def innermost(lines: Iterable[str]) -> Counter[str]:
    """Samples by the function that ran, from py-spy's raw lines: `outer (file:line);inner (file:line) samples`."""
    found: Counter[str] = Counter()
    for line in lines:
        stack, _, samples = line.rpartition(" ")
        if match := FRAME.match(stack.rpartition(";")[2]):
            file = "/".join(match["file"].split("/")[-2:])
            found[f"{match['function']} ({file})"] += int(samples)
    return found


def symbols(lines: Sequence[str]) -> list[tuple[float, str, str, str]]:
    """The lines of `perf report -t ;`: per cent, process, library, symbol."""
    cells = [[cell.strip() for cell in line.split(";", 3)] for line in lines if "%" in line.split(";", 1)[0]]
    found = [(float(cell[0].rstrip("%")), cell[1], Path(cell[2]).name, cell[3]) for cell in cells if len(cell) == 4]
    return sorted(found, reverse=True)
