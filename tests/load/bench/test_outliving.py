"""Memory whose maker is killed, with the host's memory in place of a device's."""

from __future__ import annotations

import pytest

from load.bench import outliving


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_memory_outlives_its_maker(device: str) -> None:
    found = outliving.outlives(device)
    assert len(found) == 5
    assert all(found.values()), found
