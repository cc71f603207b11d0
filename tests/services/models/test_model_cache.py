"""The model cache: a folder is complete or absent, and built once; also on a full disk."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_disk import small_disk

from services.errors import ModelError
from services.models import resolve
from services.models.cache import cached, place


def test_a_place_depends_on_the_source_and_has_the_name(tmp_path: Path) -> None:
    assert place(tmp_path, "a", "m").name == "m"
    assert place(tmp_path, "a", "m") == place(tmp_path, "a", "m")
    assert place(tmp_path, "a", "m") != place(tmp_path, "b", "m")


def test_many_callers_build_once(tmp_path: Path) -> None:
    folder, built = place(tmp_path, "a", "m"), []

    def build(target: Path, scratch: Path) -> None:
        assert not folder.exists()
        target.mkdir()
        built.append(scratch.is_dir())

    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: cached(folder, build, print), range(16)))
    assert folders == [folder] * 16
    assert built == [True]
    assert {file.name for file in folder.parent.iterdir()} == {"m", "lock"}


def test_a_build_that_fails_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    folder = place(tmp_path, "a", "m")

    def fail(target: Path, scratch: Path) -> None:
        target.mkdir()
        raise ModelError("no")

    with pytest.raises(ModelError, match="no"):
        cached(folder, fail, print)
    assert {file.name for file in folder.parent.iterdir()} == {"lock"}
    (folder.parent / "building-dead").mkdir()  # left over from a killed process
    cached(folder, lambda target, scratch: target.mkdir(), print)
    assert {file.name for file in folder.parent.iterdir()} == {"m", "lock"}


def test_a_cache_that_cannot_be_written_is_a_model_error(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where a folder must be")
    with pytest.raises(ModelError, match="cache cannot be written"):
        cached(place(tmp_path, "a", "m"), lambda target, scratch: target.mkdir(), print)


FULL = 16 << 10  # bytes, less than the tokenizer has


def with_bin(tiny: Path, folder: Path) -> Path:
    """The folder with weights in the format that was usual before safetensors."""
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(tiny / "model.safetensors"), folder / "pytorch_model.bin")
    return folder


@pytest.mark.usefixtures("converts_here")
@pytest.mark.parametrize("kind", ["GGUF file", "folder"])
def test_a_full_disk_is_named_and_nothing_is_left(kind: str, tiny: Path, tiny_gguf: Path, tmp_path: Path) -> None:
    source = tiny_gguf if kind == "GGUF file" else with_bin(tiny, tmp_path / "old")
    with small_disk(tmp_path / "cache", FULL) as cache:
        with pytest.raises(ModelError, match=rf"^no space is left on the disk of {cache}/\S+$"):
            resolve(str(source), cache)
        assert [file.name for file in cache.rglob("*") if file.is_file()] == ["lock"]
