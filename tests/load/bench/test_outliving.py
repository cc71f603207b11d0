"""Memory whose maker is killed, with the host's memory in place of a device's."""

from __future__ import annotations

import ctypes

from load.bench import outliving


def test_memory_outlives_its_maker() -> None:
    assert outliving.outlives("cpu") == {
        "seen while its maker lives": True,
        "seen after its maker is killed": True,
        "written after its maker is killed": True,
    }


def test_structures_are_as_large_as_those_of_the_driver() -> None:
    sizes = [ctypes.sizeof(one) for one in (outliving._Location, outliving._Properties, outliving._Access)]
    assert sizes == [8, 32, 12]
