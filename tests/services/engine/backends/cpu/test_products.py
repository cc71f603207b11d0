"""The kernels' products beside exact ones, for each way in which weights are kept."""

from __future__ import annotations

import pytest
import torch
from test_group_products import multiply

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
        to = multiply(packer, matrix, x)
        exact = (x.bfloat16() if matrix.kind == WeightKind.BFLOAT16_DOTS else x).double() @ weight.double().T
        torch.testing.assert_close(to.double(), exact, rtol=0, atol=4e-5 * max(1, shape[1] / 100))


@pytest.mark.parametrize("shape", [*SHAPES, (1536, 384), (384, 1536)])
def test_products_in_thirds_are_as_exact_as_those_of_floats(shape: tuple[int, int]) -> None:
    """Numbers of all sizes, with all bits of a float32; and a row's bits are the same in any batch."""
    library, draw = kernels(user_cache()), torch.Generator().manual_seed(2)
    inputs = shape[1]
    weight = torch.randn(shape, generator=draw) * 10 ** torch.randn(1, inputs, generator=draw)
    x = torch.randn(max(ROWS), inputs, generator=draw) / 10 ** torch.randn(1, inputs, generator=draw)
    exact, errors = x.double() @ weight.double().T, []
    for many_rows in (True, False):
        packer = Packer(library, torch.float32, 2, many_rows=many_rows)
        matrix = packer.matrix(Linear(weight))
        if many_rows and library.orca_units() != b"amx":
            assert matrix.kind == WeightKind.FLOAT32
            pytest.skip("this processor has no tiles")
        assert matrix.kind == (WeightKind.FLOAT32_THIRDS if many_rows else WeightKind.FLOAT32)
        all_rows = multiply(packer, matrix, x)
        for rows in ROWS:
            assert torch.equal(multiply(packer, matrix, x[-rows:]), all_rows[-rows:])
        errors.append(float((all_rows - exact).norm() / exact.norm()))
    thirds, floats = errors
    assert thirds <= max(floats, 2**-23)


def test_kinds_are_those_of_the_kernels() -> None:
    library = kernels(user_cache())
    assert library.orca_weight_kinds().decode().split() == [kind.name for kind in WeightKind]
    assert [int(kind) for kind in WeightKind] == list(range(len(WeightKind)))


def test_other_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "WeightKind", [WeightKind.FLOAT32, WeightKind.INT8])
    with pytest.raises(AssertionError, match="the kernels have the kinds"):
        Packer(kernels(user_cache()), torch.float32, 1)
