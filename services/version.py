"""The version of this program."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def program_version() -> str:
    """Return the version of pyproject.toml; `unknown` if the program runs from a checkout that is not installed."""
    try:
        return version("orca")
    except PackageNotFoundError:
        return "unknown"
