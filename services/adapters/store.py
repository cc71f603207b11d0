"""The content of adapters, in the files folder that gateways and engines share.

An adapter's folder is named by the digest of its content. It appears there complete or not at all, and never changes.
"""

from __future__ import annotations

from pathlib import Path


def folder_of(files: Path, digest: str) -> Path:
    """Return the folder of the adapter whose content has this digest (sha256, hexadecimal), below the files folder."""
    return files / "adapters" / digest
