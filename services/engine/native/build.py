"""The compiled kernels: made by the machine's own compiler for its own processor, once."""

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
from services.engine.cpuinfo import cpuinfo

SOURCE = Path(__file__).parent / "kernels"
COMPILER = "g++"
# no -ffast-math: sums keep their order and NaN stays NaN
FLAGS = ["-O3", "-march=native", "-std=c++20", "-shared", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]


class NoKernels(Exception):
    """This machine cannot compile them."""


@functools.cache
def kernels(cache_dir: Path, source: Path = SOURCE) -> ctypes.CDLL:
    """The library of `source` in `cache_dir`, compiled first if it is not there. Raises NoKernels."""
    try:
        return _typed(ctypes.CDLL(str(compiled(cache_dir, source=source))))
    except OSError as error:
        raise NoKernels(f"the kernels cannot be kept or loaded: {error}") from error


def compiled(cache_dir: Path, progress: Callable[[str], None] = lambda line: None, source: Path = SOURCE) -> Path:
    """The library's file; made, once for many processes, if it is not there, of which `progress` is told: it takes a
    third of a minute. Raises NoKernels, and OSError where nothing can be kept."""
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


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    library.orca_new_buffers.restype = ctypes.c_void_p
    library.orca_new_finds.restype = ctypes.c_void_p
    library.orca_units.restype = ctypes.c_char_p
    return library


def _identity(compiler: str, source: Path) -> str:
    """A hash of all that the library is made of: source, flags, compiler and the processor's abilities."""
    version = _ran([compiler, "--version"])
    digest = hashlib.sha256(repr((FLAGS, version, platform.machine(), _abilities())).encode())
    for file in sorted(source.iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _abilities() -> str:
    lines = cpuinfo().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _compile(compiler: str, source: Path, library: Path) -> None:
    """What is half made is never seen."""
    made = library.with_suffix(".part")
    _ran([compiler, *FLAGS, *map(str, sorted(source.glob("*.cpp"))), "-o", str(made)])
    made.replace(library)


def _ran(command: list[str]) -> str:
    done = subprocess.run(command, env=without_settings(), capture_output=True, text=True)
    if done.returncode:
        raise NoKernels(f"{COMPILER} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout
