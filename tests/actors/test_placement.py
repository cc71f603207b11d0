"""Each rank needs a GPU of its own, or the server does not start."""

from __future__ import annotations

from typing import Any

import pytest

from actors.placement import check_gpus
from services.errors import SettingsError
from services.settings.settings import Settings


@pytest.mark.parametrize(
    ("settings", "there", "named"),
    [
        ({"device": "cuda"}, 0, "device=cuda: this machine has no CUDA device"),
        ({"device": "cuda", "tp": 2}, 1, "engines=1, tp=2, pp=1: each rank has a GPU, 2 are needed.* has 1"),
        ({"tp": 2, "pp": 2}, 3, "tp=2, pp=2.*4 are needed.* has 3"),
        ({"engines": 2}, 1, "engines=2"),
    ],
)
def test_too_few_gpus_are_named(settings: dict[str, Any], there: int, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        check_gpus(Settings(**settings), there)


@pytest.mark.parametrize(
    ("settings", "there"),
    [({"tp": 2}, 0), ({"tp": 2, "device": "cpu"}, 1), ({"tp": 2}, 2), ({"device": "cuda", "engines": 2, "tp": 2}, 4)],
)
def test_enough_gpus_or_none_wanted(settings: dict[str, Any], there: int) -> None:
    check_gpus(Settings(**settings), there)
