"""The kernels' products beside exact ones, for each way in which weights are kept."""

from __future__ import annotations

import ctypes

import pytest
import torch

from services.engine.backends.cpu import packing
from services.engine.backends.cpu.build import kernels
from services.engine.backends.cpu.packed import WeightKind
from services.engine.backends.cpu.packing import Packer
from services.engine.families.decoder_weights import Linear
from services.files import user_cache

ROWS = (1, 2, 15, 16, 17, 33, 64, 100)  # about the sizes of tiles and blocks
SHAPES = ((96, 64), (100, 72), (130, 100), (33, 32), (7, 3), (40, 500), (40, 1024))  # outputs, inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_exact_but_for_the_sums(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    draw = torch.Generator().manual_seed(1)
    numbers = torch.randint(-127, 128, shape, generator=draw)
    numbers[:, 0] = 127  # so that int8 has all of them
    weight = (numbers / 64).bfloat16()
    packer = Packer(kernels(user_cache()), dtype, 2)
    matrix = packer.matrix(Linear(weight))
    for rows in ROWS:
        x = torch.randn(rows, shape[1], generator=draw)
        to = torch.full((rows, shape[0]), torch.nan)
        packer._library.orca_multiply(
            ctypes.byref(matrix.struct()), ctypes.c_void_p(x.data_ptr()), rows, 2, ctypes.c_void_p(to.data_ptr())
        )
        exact = (x.bfloat16() if matrix.kind == WeightKind.BFLOAT16_DOTS else x).double() @ weight.double().T
        torch.testing.assert_close(to.double(), exact, rtol=0, atol=4e-5 * max(1, shape[1] / 100))


def test_kinds_are_those_of_the_kernels() -> None:
    library = kernels(user_cache())
    assert library.orca_weight_kinds().decode().split() == [kind.name for kind in WeightKind]
    assert [int(kind) for kind in WeightKind] == list(range(len(WeightKind)))


def test_other_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "WeightKind", [WeightKind.FLOAT32, WeightKind.INT8])
    with pytest.raises(AssertionError, match="the kernels have the kinds"):
        Packer(kernels(user_cache()), torch.float32, 1)
