"""Files that are written tensor by tensor are read by the library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from services.models import contents
from services.models.safetensors_file import SafetensorsWriter


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    tensors = {
        "bytes": torch.arange(35, dtype=torch.uint8).view(5, 7),
        "é.weight": torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(1)).bfloat16().transpose(0, 1),
        "float": torch.tensor([1.5, -2.0]),
        "none": torch.empty(0, 3),
    }
    file = tmp_path / "some.safetensors"
    with SafetensorsWriter(file, [*tensors, "another"]) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
        writer.finish(dict.fromkeys(tensors, "Q4_K"))
    read = load_file(file)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
    with safe_open(file, framework="pt") as opened:
        assert opened.metadata() == dict.fromkeys(tensors, "Q4_K")


@pytest.mark.parametrize("chunk", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_hash_is_that_of_the_file(chunk: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file, too."""
    monkeypatch.setattr(contents, "CHUNK", chunk)
    file, hashes = tmp_path / "some.safetensors", set()
    for place in (file, None):
        with SafetensorsWriter(place, map(str, range(9))) as writer:
            for i in range(count):
                writer.add(str(i), torch.arange(i * 300, dtype=torch.float32))
            hashes.add(writer.finish({"format": "pt"}))
    assert hashes == {contents.contents(file, None)}


def test_the_longest_entries_fit(tmp_path: Path) -> None:
    """Each name is in the metadata, too."""
    names = [f"model.layers.{i}.mlp.experts.{i}.gate_proj.weight" for i in range(1000)]
    file = tmp_path / "some.safetensors"
    with SafetensorsWriter(file, names) as writer:
        for name in names:
            writer.add(name, torch.zeros(1, 1, 1, 1, 1, 1, dtype=torch.bfloat16))
        writer.finish(dict.fromkeys(names, "IQ2_XXS"))
    assert len(load_file(file)) == 1000


def test_a_file_that_is_not_finished_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "some.safetensors"
    with SafetensorsWriter(file, ["a"]) as writer:
        writer.add("a", torch.ones(3))
    with pytest.raises(SafetensorError):
        load_file(file)
