"""Cases of a table that only `make test-all` runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def full(cases: Iterable[Any]) -> list[Any]:
    """The cases of a parameter, or tuples for several, with the mark `full`."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full) for case in cases]
