"""What is known of a model from an earlier start: transformers takes seconds to be imported and read its config."""

from __future__ import annotations

import contextlib
import hashlib
from importlib.metadata import version
from pathlib import Path

from services.engine.lean.spec import DecoderSpec
from services.files import write_atomically
from services.wire import pack, unpack

# what a spec as it is kept depends on beside the config
READERS = ("families.py", "rotary.py", "spec.py", "../model_config.py", "../../wire.py")


def known_spec(folder: Path, cache: Path) -> DecoderSpec | None:
    """Of the model in `folder`; None for one without a lean path. Kept in `cache`, where that can be written.

    Raises ModelError for a model that is not served.
    """
    file = cache / "specs" / _identity(folder)
    with contextlib.suppress(OSError, ValueError):  # the machine may have stopped before the disk had all of it
        return unpack(DecoderSpec, file.read_bytes())
    from services.engine.lean.families import spec_of
    from services.engine.model_config import load_config

    spec = spec_of(load_config(folder))
    if spec:  # else transformers runs, and is imported anyway
        with contextlib.suppress(OSError):
            write_atomically(file, pack(spec))
    return spec


def _identity(folder: Path) -> str:
    """A hash of all that a spec is made of."""
    digest = hashlib.sha256(version("transformers").encode())
    config = folder / "config.json"
    for file in (config, *(Path(__file__).parent / reader for reader in READERS)):
        with contextlib.suppress(OSError):  # transformers says it better
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
