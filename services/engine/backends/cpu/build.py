"""The compiled kernels. Imports no package, so that they can be compiled while packages are installed.

The image and the wheel of `make wheel` have kernels that were compiled ahead for some sets of instructions, in the
folder `prebuilt` beside this file: `python -m services.engine.backends.cpu.build` puts them there. Elsewhere, the
machine's own compiler makes them for its own processor, once.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.child_environment import without_settings

SOURCE = Path(__file__).parent / "kernels"
COMPILER = "g++"
EVERY = 10.0  # seconds between lines while it runs
# no -ffast-math: sums keep their order, and NaN stays NaN
FLAGS = ["-O3", "-march=native", "-std=c++20", "-shared", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]
PREBUILT = Path(__file__).with_name("prebuilt")
_V3 = "avx avx2 bmi1 bmi2 f16c fma abm movbe"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
# sets of instructions, the fastest first: the compiler's flags, and the processor's features that they need, as Linux
# names them
TARGETS = {
    "amx": (
        "-march=x86-64-v4 -mavx512vnni -mavx512bf16 -mamx-tile -mamx-bf16",
        f"{_V4} avx512_vnni avx512_bf16 amx_tile amx_bf16",
    ),
    "avx512_bf16": ("-march=x86-64-v4 -mavx512vnni -mavx512bf16", f"{_V4} avx512_vnni avx512_bf16"),
    "avx512": ("-march=x86-64-v4", _V4),
    "avx2": ("-march=x86-64-v3", _V3),
}


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
    """The library that `source` compiles to. It is kept in `cache_dir`, or was compiled ahead. Raises NoKernels."""
    try:
        return Kernels(str(compiled(cache_dir, source=source)))
    except OSError as error:
        raise NoKernels(f"the kernels cannot be kept or loaded: {error}") from error


def compiled(cache_dir: Path, progress: Callable[[str], None] = lambda line: None, source: Path = SOURCE) -> Path:
    """The library's file: one that was compiled ahead, or one that is compiled if it is not there, once for many
    processes. Compiling takes a minute, so `progress` gets lines about it. Raises NoKernels, and OSError if
    the file cannot be kept."""
    if ahead := prebuilt(source, PREBUILT):
        return ahead
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise NoKernels(f"there is no {COMPILER}, and no library compiled ahead for this processor")
    library = cache_dir / "kernels" / f"{_identity(compiler, source)}.so"
    if not library.exists():
        progress("compiling the engine's kernels for this processor, once")
        library.parent.mkdir(parents=True, exist_ok=True)
        with library.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # while one process compiles, others wait
            if not library.exists():
                _compile([compiler, *FLAGS], source, library, progress)
    return library


def prebuilt(source: Path, folder: Path) -> Path | None:
    """The fastest library in `folder` that was compiled ahead from `source` and that this processor can run."""
    features = set(_features().split())
    for target, (_, needs) in TARGETS.items():
        library = folder / _prebuilt_name(target, source)
        if features.issuperset(needs.split()) and library.exists():
            return library
    return None


def prebuild(targets: Sequence[str], source: Path = SOURCE, folder: Path = PREBUILT) -> None:
    """Compile `source` into `folder` for some of TARGETS. Raises NoKernels, also for an unknown target."""
    if unknown := set(targets) - set(TARGETS):
        raise NoKernels(f"no such sets of instructions: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    folder.mkdir(exist_ok=True)
    flags = [flag for flag in FLAGS if not flag.startswith("-march=")]

    def compile_for(target: str) -> None:
        _compile([COMPILER, *flags, *TARGETS[target][0].split()], source, folder / _prebuilt_name(target, source))

    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        for _ in compilers.map(compile_for, targets):
            pass  # raises what failed


def _prebuilt_name(target: str, source: Path) -> str:
    """Different for each source, so that kernels of other sources are never used."""
    digest = hashlib.sha256(repr((FLAGS, TARGETS[target])).encode())
    return f"{target}-{_with_source(digest, source)}.so"


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
    return _with_source(digest, source)


def _with_source(digest: hashlib._Hash, source: Path) -> str:
    for file in sorted(source.iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _features() -> str:
    lines = cpuinfo().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _compile(
    command: Sequence[str], source: Path, library: Path, progress: Callable[[str], None] = lambda line: None
) -> None:
    """Compile to another name first, so that no process loads half a library."""
    made = library.with_suffix(".part")
    try:
        _output_of([*command, *map(str, sorted(source.glob("*.cpp"))), "-o", str(made)], progress)
        made.replace(library)
    finally:
        made.unlink(missing_ok=True)


def _output_of(command: list[str], progress: Callable[[str], None] = lambda line: None) -> str:
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            command, env=without_settings(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except FileNotFoundError as error:
        raise NoKernels(f"there is no {command[0]}") from error
    with process:
        while True:
            try:
                output, errors = process.communicate(timeout=EVERY)
                break
            except subprocess.TimeoutExpired:
                progress(f"compiling the engine's kernels: {time.monotonic() - began:.0f} s passed")
            except BaseException:
                process.kill()
                raise
    if process.returncode:
        raise NoKernels(f"{COMPILER} failed: {errors.strip()[-2000:]}")
    return output


if __name__ == "__main__":
    prebuild(sys.argv[1:] or list(TARGETS))
