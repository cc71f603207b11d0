"""Where the specs and fits of models are kept, which transformers takes seconds to make. Imports neither it nor torch.

Their names are hashes of all that they depend on: config, weights' names and shapes, transformers, and our code."""

from __future__ import annotations

import contextlib
import hashlib
from importlib.metadata import version
from pathlib import Path

from services import wire
from services.models.gguf_index import INDEX
from services.models.pooling import MODULES, OVERRIDES, pooling_of
from services.models.quantization import MODELOPT_FILE
from services.models.safetensors_file import header
from services.models.weights_files import weights_files

_ENGINE = Path(__file__).parents[1]
CODE = [
    *sorted(_ENGINE.glob("families/*.py")),
    *sorted(_ENGINE.glob("weights/*.py")),
    _ENGINE / "spec.py",
    Path(wire.__file__),
]


def spec_file(folder: Path, cache: Path, encoder: bool = False) -> Path:
    """The file of the spec of the model in `folder`: empty if the fast path does not run it."""
    return cache / "specs" / f"{_identity(folder)}{'-encoder' * encoder}"


def fit_file(folder: Path, cache: Path) -> Path:
    """The file of the fit of the weights in `folder` to its config. Raises ModelError."""
    index = folder / INDEX
    headers = [header(file) for file in weights_files(folder)] + ([index.read_bytes()] if index.exists() else [])
    return cache / "fits" / _identity(folder, b"".join(headers))


def is_kept(folder: Path, cache: Path) -> bool:
    """Whether an engine needs no transformers to learn how it runs the model in `folder`. Raises ModelError."""
    pooling = pooling_of(folder)
    encoder = pooling is not None and pooling.encoder
    try:
        needs_fit = spec_file(folder, cache, encoder).stat().st_size and not encoder
    except OSError:
        return False
    return not needs_fit or fit_file(folder, cache).exists()


def _identity(folder: Path, more: bytes = b"") -> str:
    digest = hashlib.sha256(version("transformers").encode() + more)
    for file in (
        folder / "config.json",
        folder / MODELOPT_FILE,
        folder / MODULES,
        folder / OVERRIDES,
        *CODE,
    ):
        with contextlib.suppress(OSError):  # without a config, transformers reports the error
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
