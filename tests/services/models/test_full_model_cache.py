"""A model cache on a full disk: the error says so, and nothing is left of the conversion."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_disk import small_disk

from services.errors import ModelError
from services.models import resolve

SIZE = 64 << 10  # bytes, less than the weights have


def with_bin(tiny: Path, folder: Path) -> Path:
    """The folder with weights in the format that was usual before safetensors."""
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(tiny / "model.safetensors"), folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize("kind", ["GGUF file", "folder"])
def test_a_full_disk_is_named(kind: str, tiny: Path, tiny_gguf: Path, tmp_path: Path) -> None:
    source = tiny_gguf if kind == "GGUF file" else with_bin(tiny, tmp_path / "old")
    with small_disk(tmp_path / "cache", SIZE) as cache:
        with pytest.raises(ModelError, match="no space is left on the disk of ") as raised:
            resolve(str(source), cache)
        assert re.fullmatch(
            rf"{source} cannot be converted: no space is left on the disk of {cache}/\S+", str(raised.value)
        )
        assert [file.name for file in cache.rglob("*") if file.is_file()] == ["lock"]
