"""Memory whose maker is killed, with the host's memory in place of a device's."""

from __future__ import annotations

import pytest
import torch

from load.bench import outliving

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_memory_outlives_its_maker(device: str) -> None:
    found = outliving.outlives(device)
    assert len(found) == 5
    assert all(found.values()), found
