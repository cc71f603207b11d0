"""Weights of GGUF files are read where they lie, and files that change meanwhile are noticed."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_models import make_tiny_model

from load.gguf_files import write_gguf
from services.engine.weights.tensors import Checkpoint
from services.errors import ModelError, OtherWeights
from services.models import ModelInfo, resolve
from services.models.gguf_index import GgufIndex
from services.models.pin import check_pin, pin

pytestmark = pytest.mark.usefixtures("converts_here")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    size = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    return make_tiny_model(tmp_path_factory.mktemp("index") / "llama", "llama", 300, **size)


@pytest.fixture(params=["Q8_0", "F16", "BF16"])
def file(request: pytest.FixtureRequest, original: Path, tmp_path: Path) -> Path:
    return write_gguf(original, tmp_path / "model.gguf", lambda _: request.param)


def change(file: Path) -> None:
    """Write other weights to the same file, and set its time back."""
    stat = file.stat()
    with file.open("r+b") as opened:
        opened.seek(-4, os.SEEK_END)
        before = opened.read(4)
        opened.seek(-4, os.SEEK_END)
        opened.write(bytes(each ^ 1 for each in before))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_no_matrix_is_copied(file: Path, tmp_path: Path) -> None:
    folder = resolve(str(file), tmp_path / "cache")
    index, checkpoint = GgufIndex.read(folder), Checkpoint(folder)
    assert index is not None
    assert index.places.keys() == {name for name in checkpoint.names if len(checkpoint.shape(name)) == 2}
    copied = (folder / "model.safetensors").stat().st_size
    assert copied < file.stat().st_size / 4


def test_parts_of_a_matrix_are_those_of_the_whole(file: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint(resolve(str(file), tmp_path / "cache"))
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.up_proj.weight"):
        whole = checkpoint.read(name)
        assert checkpoint.shape(name) == whole.shape
        assert checkpoint.rows(name) == len(whole)
        assert torch.equal(checkpoint.read(name, rows=(3, 70)), whole[3:70])
        assert torch.equal(checkpoint.read(name, columns=(64, 128)), whole[:, 64:128])


def test_a_file_that_changes_is_converted_again(file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    pinned = pin(str(file), cache)
    folder = resolve(pinned, cache)
    change(file)
    for read in (Checkpoint, ModelInfo.load, partial(check_pin, pinned, cache_dir=cache)):  # also by one that reads
        with pytest.raises(OtherWeights, match=r"model\.gguf, in which weights of a converted model lie, has changed"):
            read(folder=folder)
    other = resolve(pinned, cache)
    Checkpoint(other)
    with pytest.raises(OtherWeights, match=r"model\.gguf have changed: they are revision \w+"):
        check_pin(pinned, other, cache)


def test_a_file_that_was_copied_is_the_same_model(file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    pinned = pin(str(file), cache)
    before = resolve(pinned, cache)
    shutil.copy(file, tmp_path / "copy.gguf")
    (tmp_path / "copy.gguf").replace(file)
    again = resolve(pinned, cache)
    assert again != before
    check_pin(pinned, again, cache)


def test_a_file_that_moved_is_named(file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder = resolve(str(file), cache)
    revision = ModelInfo.load(folder).revision
    moved = file.rename(tmp_path / "moved.gguf")
    with pytest.raises(ModelError, match=r"model\.gguf, in which .* lie, cannot be read: No such file or directory"):
        Checkpoint(folder)
    assert ModelInfo.load(resolve(str(moved), cache)).revision == revision


def test_an_index_that_is_torn_is_named(file: Path, tmp_path: Path) -> None:
    folder = resolve(str(file), tmp_path / "cache")
    (folder / "gguf.index").write_bytes(b"?")
    with pytest.raises(ModelError, match=r"gguf\.index cannot be read: this is no GgufIndex"):
        Checkpoint(folder)
