"""The compiled kernels: the machine's own compiler makes them for its own processor, once. Imports no torch."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from services.child_environment import without_settings

SOURCE = Path(__file__).parent / "kernels"
COMPILER = "g++"
# no -ffast-math: sums keep their order, and NaN stays NaN
FLAGS = ["-O3", "-march=native", "-std=c++20", "-shared", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]


class NoKernels(Exception):
    """The kernels cannot be compiled or used on this machine."""


class Kernels(ctypes.CDLL):
    """The library in a file. It is pickled as the file's name, which has a hash of all that the library depends on."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.orca_new_buffers.restype = ctypes.c_void_p
        self.orca_new_finds.restype = ctypes.c_void_p
        self.orca_units.restype = ctypes.c_char_p
        self.orca_weight_kinds.restype = ctypes.c_char_p

    def __reduce__(self) -> tuple[type[Kernels], tuple[str]]:
        return Kernels, (self._name,)


@functools.cache
def kernels(cache_dir: Path, source: Path = SOURCE) -> Kernels:
    """The library that `source` compiles to. It is kept in `cache_dir`. Raises NoKernels."""
    try:
        return Kernels(str(compiled(cache_dir, source=source)))
    except OSError as error:
        raise NoKernels(f"the kernels cannot be kept or loaded: {error}") from error


def compiled(cache_dir: Path, progress: Callable[[str], None] = lambda line: None, source: Path = SOURCE) -> Path:
    """The library's file, compiled if it is not there, once for many processes. Compiling takes a third of a minute, so
    `progress` gets a line about it. Raises NoKernels, and OSError if the file cannot be kept."""
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise NoKernels(f"there is no {COMPILER}")
    library = cache_dir / "kernels" / f"{_identity(compiler, source)}.so"
    if not library.exists():
        progress("compiling the engine's kernels for this processor, once")
        library.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(library.with_suffix(".lock")):
            if not library.exists():
                _compile(compiler, source, library)
    return library


def cpuinfo() -> str:
    """Linux's description of this machine's processors, a paragraph for each; empty on other systems."""
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def _identity(compiler: str, source: Path) -> str:
    """A hash of all that the library depends on: source, flags, compiler and the processor's features."""
    version = _output_of([compiler, "--version"])
    digest = hashlib.sha256(repr((FLAGS, version, platform.machine(), _features())).encode())
    for file in sorted(source.iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _features() -> str:
    lines = cpuinfo().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _compile(compiler: str, source: Path, library: Path) -> None:
    """Compile to another name first, so that no process loads half a library."""
    made = library.with_suffix(".part")
    _output_of([compiler, *FLAGS, *map(str, sorted(source.glob("*.cpp"))), "-o", str(made)])
    made.replace(library)


def _output_of(command: list[str]) -> str:
    done = subprocess.run(command, env=without_settings(), capture_output=True, text=True)
    if done.returncode:
        raise NoKernels(f"{COMPILER} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout
