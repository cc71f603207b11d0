"""What the servers serve that clients run against: models, and chat templates of families with calls of their own."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tarfile
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# the templates of many families, as llama.cpp's tests have them (MIT)
ARCHIVE = (
    "https://files.pythonhosted.org/packages/ec/e9/e7de2b0463ea3ffbf0ede6cb21b58c1258a8f6521aae45ca773a59fe7cf3/"
    "llama_cpp_python-0.3.36.tar.gz"
)
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
INSIDE = "vendor/llama.cpp/models/templates/"


@dataclass(frozen=True, slots=True)
class Served:
    """What one server serves: the default model, with the chat template of another family if there is a `template`.

    `reasons`: whether the family's answers have reasoning: "must" where the template begins it. `vectors`: a tiny
    random model that makes vectors, in place of the default one.
    """

    name: str
    template: str = ""
    reasons: Literal["no", "may", "must"] = "no"
    vectors: bool = False

    def flags(self, folder: Path) -> list[str]:
        """The flags of `orca serve`; what they need is put into `folder`. Raises OSError if it cannot be fetched."""
        if self.vectors:
            return ["--model", str(_embedder(folder.absolute() / "embedder"))]
        if self.template:
            return ["--chat-template", str(_templates(folder.absolute()) / f"{self.template}.jinja")]
        return []


DEFAULT = Served("default")
VECTORS = Served("vectors", vectors=True)
# each with another format of calls
FORMATS = (
    Served("Qwen3-Coder", "Qwen3-Coder"),
    Served("Kimi K2", "moonshotai-Kimi-K2"),
    Served("LFM2", "LFM2-8B-A1B"),
    Served("Seed-OSS", "ByteDance-Seed-OSS", "may"),
    Served("Mistral", "mistralai-Ministral-3-14B-Reasoning-2512", "may"),
    Served("GPT-OSS", "openai-gpt-oss-120b", "may"),
    Served("Gemma 4", "google-gemma-4-31B-it", "may"),
    Served("DeepSeek V3.2", "deepseek-ai-DeepSeek-V3.2", "may"),
    Served("GLM-4.7", "GLM-4.7-Flash", "must"),
    Served("MiniMax M2", "MiniMax-M2", "must"),
    Served("Nemotron 3", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "must"),
)


def _templates(folder: Path) -> Path:
    """The folder of the templates, fetched if they are not there."""
    place = folder / "templates"
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            archive, found = Path(scratch, "archive"), Path(scratch, "templates")
            with urllib.request.urlopen(ARCHIVE, timeout=60) as reply, archive.open("wb") as file:
                shutil.copyfileobj(reply, file)
            with archive.open("rb") as file:
                if (digest := hashlib.file_digest(file, "sha256").hexdigest()) != SHA256:
                    raise OSError(f"{ARCHIVE} has the SHA-256 {digest}, not {SHA256}")
            found.mkdir()
            with tarfile.open(archive) as files:
                for member in files:
                    if INSIDE in member.name and (data := files.extractfile(member)):
                        (found / Path(member.name).name).write_bytes(data.read())
            found.rename(place)
    return place


def _embedder(folder: Path) -> Path:
    if not (folder / "modules.json").exists():
        sys.path.append(str(Path(__file__).parents[1]))  # as pytest does
        from vector_models import make_embedder

        make_embedder(folder, "qwen3")
    return folder
