"""Where the CUDA backend is chosen, and which tiles its products have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime.errors import OutOfResources

from services.engine.backends.cuda.coded import Coding
from services.engine.backends.cuda.kernels.product import CODES_ANCHOR, CODES_TILES, Tile
from services.engine.backends.cuda.products import Products, Shape
from services.engine.families.config import load_config
from services.engine.families.registry import FAMILIES, spec_of
from services.engine.settings import EngineSettings
from services.engine.startup import devices, loading

CODING = Coding(4, 32, 2, "integers", "halves", "middle", False)


def test_layers_without_triton_kernels_are_transformers_own(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model("mistral")
    decoder = loading.fast_path_spec(folder, EngineSettings())
    assert decoder
    encoder = replace(decoder, both_ways=True)
    for device, found in (("cpu", encoder), ("cuda", None)):
        monkeypatch.setattr(devices, "choose_device", lambda settings, device=device: torch.device(device))
        monkeypatch.setattr(loading, "load_spec", lambda *args: decoder)
        assert loading.fast_path_spec(folder, EngineSettings()) == decoder
        monkeypatch.setattr(loading, "load_spec", lambda *args: encoder)
        assert loading.fast_path_spec(folder, EngineSettings()) == found


def test_every_family_of_decoders_has_triton_kernels(tiny_model: Callable[[str], Path]) -> None:
    specs = {family: spec_of(load_config(tiny_model(family))) for family in FAMILIES}
    assert [family for family, spec in specs.items() if spec is None or spec.lacks_on_cuda] == []


@pytest.mark.parametrize("why", ["does not fit", "has other bits"])
def test_a_tile_that_is_not_used_gives_way_to_that_of_fewer_rows(why: str) -> None:
    """The anchor would read the weights once for every 16 rows of a long prompt."""
    shape = Shape(0, 64, 64, torch.bfloat16, torch.bfloat16, CODING)
    tiles = [tile for _, _, tile in CODES_TILES]

    def way(rows: int, tile: Tile) -> torch.Tensor:
        if tile not in (tiles[0], tiles[2]) and why == "does not fit":
            raise OutOfResources(544, 512, "tensor memory")
        return torch.full((rows, 64), float(tile not in (tiles[0], tiles[2])))

    products = Products()
    assert products._tile(shape, 9000) == tiles[-1]
    products._settle_tiles(shape, 2048, way)
    found = [products._tile(shape, rows) for rows in (1, 17, 32, 33, 65, 128, 129, 9000)]
    assert found == [tiles[0]] * 3 + [tiles[2]] * 5
    assert tiles[0] == CODES_ANCHOR
