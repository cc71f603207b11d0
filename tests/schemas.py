"""Documents of others that tests compare with: where they come from, and the folder that holds them.

`make schemas` downloads them; it needs no environment:

    python tests/schemas.py [FOLDER]
"""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / ".schemas"
GITHUB = "https://raw.githubusercontent.com"
# file: (repository/commit/path, SHA-256); licenses: Apache-2.0, Apache-2.0, MIT
DOCUMENTS = {
    "compose_spec.json": (
        "compose-spec/compose-spec/170098ba07d9f53c383a41bfd4c5166b0a4529a6/schema/compose-spec.json",
        "1f91e091f16b2dd50ab8860e02bb391d22df553d91c145eacedb1b6eff9c3f0e",
    ),
    "kuberay_rayservice_crd.yaml": (
        "ray-project/kuberay/feeaf72facab4881ba2b179248bb67315634e229/ray-operator/config/crd/bases/ray.io_rayservices.yaml",
        "0a8fc325e6e22b9231c1f282b309555e2ecf94227ca20a03df3d1d9a403907ab",
    ),
    "openai_openapi.yaml": (
        "openai/openai-openapi/f85dbe223d40e1a31cba812ab2d755c7e98a92a3/openapi.yaml",
        "db5d7478feae10b4d331834c60d9765a8aa042e38419f9b1694288c11aa8ebc8",
    ),
}


def document(name: str) -> Path:
    """The file of a document, in the folder ORCA_SCHEMAS or in `.schemas`. The test is skipped where it is absent."""
    import pytest

    path = Path(os.environ.get("ORCA_SCHEMAS") or FOLDER) / name
    if not path.exists():
        pytest.skip(f"{path} is not there; `make schemas` downloads it")
    return path


def rewritten(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A copy of a schema, or of a part of a document, in which each object is what `change` makes of a copy of it.
    Inner objects are changed first."""
    if isinstance(schema, list):
        return [rewritten(part, change) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return change({key: rewritten(part, change) for key, part in schema.items()})


def download(folder: Path, site: str = GITHUB) -> None:
    """Download all documents. Raises OSError, and ValueError for a document whose hash is another."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (path, expected) in DOCUMENTS.items():
        with urllib.request.urlopen(f"{site}/{path}", timeout=60) as reply:
            data = reply.read()
        found = hashlib.sha256(data).hexdigest()
        if found != expected:
            raise ValueError(f"{site}/{path} has the SHA-256 {found}, not {expected}")
        (folder / name).write_bytes(data)
        print(f"{folder / name}: {len(data)} bytes")


if __name__ == "__main__":
    download(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
