"""Which release of Orca runs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def release() -> str:
    try:
        return version("orca")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
