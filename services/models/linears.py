"""The linear layers of a model: what adapters may change. They are found in a process of their own, because only
transformers' code of a family knows them, and gateways import no torch."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from services import wire
from services.child_environment import ROOT, without_settings
from services.errors import ModelError

FINDER = "services.engine.families.linears"
CODE = sorted((ROOT / "services/engine/families").glob("*.py"))


@dataclass(frozen=True, slots=True)
class LinearShape:
    """A linear layer: y [outputs] = W x [inputs]. `obstacle` says why no adapter can change it, and completes a
    sentence that begins with its name; empty: one can."""

    outputs: int
    inputs: int
    obstacle: str = ""
    inputs_first: bool = False  # its weight is kept as [inputs, outputs]


@dataclass(frozen=True, slots=True)
class Linears:
    by_name: dict[str, LinearShape]  # as transformers names the modules of the text model


def load_linears(folder: Path, cache: Path) -> dict[str, LinearShape]:
    """The linear layers of the model in `folder`, by transformers' names. They are kept in `cache`; to find them takes
    seconds. Raises ModelError."""
    kept = kept_at(folder, cache)
    with contextlib.suppress(OSError, ValueError):  # not kept, or torn because the machine stopped
        return wire.unpack(Linears, kept.read_bytes()).by_name
    command = [sys.executable, "-m", FINDER, str(folder), str(cache)]
    done = subprocess.run(command, env=without_settings(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    try:
        return wire.unpack(Linears, kept.read_bytes()).by_name
    except (OSError, ValueError):
        words = done.stderr.strip().splitlines()
        reason = words[-1] if words else f"its process ended with {done.returncode}"
        raise ModelError(f"the linear layers of {folder} cannot be found: {reason}") from None


def kept_at(folder: Path, cache: Path) -> Path:
    """The file in `cache` that has the linear layers of the model in `folder`, once they are found."""
    digest = hashlib.sha256(version("transformers").encode())
    for file in (folder / "config.json", *CODE):
        with contextlib.suppress(OSError):  # without a config, the finder reports the error
            digest.update(file.read_bytes())
    return cache / "linears" / digest.hexdigest()[:16]
