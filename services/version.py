"""The version of this program, as it was installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def program_version() -> str:
    """As in pyproject.toml; `unknown` where the program runs from a checkout that is not installed."""
    try:
        return version("orca")
    except PackageNotFoundError:
        return "unknown"
