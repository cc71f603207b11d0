"""Pinned models: all processes of a server use the weights that it was started with."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from services.errors import ModelError, OtherWeights
from services.models import ModelInfo, contents, resolve
from services.models.pin import check_pin, pin, pin_commit, pinned_info
from services.models.resolve import split


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "own-llama"))


def retrain(folder: Path) -> None:
    """Write other weights with the same shapes to the same file."""
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\x3f")


def test_a_pinned_name_contains_the_revision(model: Path, tmp_path: Path) -> None:
    pinned = pin(str(model), tmp_path)
    assert pinned == f"{model}@{ModelInfo.load(model).revision}"
    assert pin(pinned, tmp_path) == pinned
    assert resolve(pinned, tmp_path) == model
    assert pin_commit(str(model)) == str(model)
    check_pin(pinned, model, tmp_path)
    check_pin(str(model), model, tmp_path)


def test_changed_weights_are_refused(model: Path, tmp_path: Path) -> None:
    pinned = pin(str(model), tmp_path)
    before = pinned_info(pinned, model, tmp_path)
    old = (model / "model.safetensors").read_bytes()
    retrain(model)
    with pytest.raises(OtherWeights, match=r"own-llama have changed: they are revision \w+, this server was started"):
        check_pin(pinned, model, tmp_path)
    with pytest.raises(ModelError, match=rf"has revision \w+, asked for is {before.revision}"):
        pin(pinned, tmp_path)
    assert pin(str(model), tmp_path) != pinned  # a new server uses another pool
    assert pinned_info(pinned, model, tmp_path) == before  # gateways and schedulers keep theirs
    (model / "model.safetensors").write_bytes(old)
    check_pin(pinned, model, tmp_path)


def test_a_name_may_contain_an_at_sign(tmp_path: Path) -> None:
    (tmp_path / "a@b").mkdir()
    assert split(str(tmp_path / "a@b")) == (str(tmp_path / "a@b"), "")
    assert split(f"{tmp_path}/a@b@c") == (f"{tmp_path}/a@b", "c")
    assert split("some/model@main") == ("some/model", "main")
    assert split("default") == ("default", "")


def test_a_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "SETTLED", -(1 << 60))
    file, cache = tmp_path / "weights", tmp_path / "cache"
    file.write_bytes(b"one")
    digest = contents.contents(file, cache)
    assert contents.contents(file, None) == digest
    [kept] = (cache / "models" / "contents").iterdir()
    known = hashlib.sha256(b"known").hexdigest()
    kept.write_text(known)
    assert contents.contents(file, cache) == known
    kept.write_text(known[:-2])  # truncated by a crash of the machine
    assert contents.contents(file, cache) == digest


def test_a_change_is_noticed_if_times_are_reset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "SETTLED", -(1 << 60))
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    digest, times = contents.contents(file, tmp_path), file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert contents.contents(file, tmp_path) != digest


def test_the_hash_of_a_new_file_is_not_kept(tmp_path: Path) -> None:
    """The next write may get the same time, because clocks of file systems are coarse."""
    file, cache = tmp_path / "weights", tmp_path / "cache"
    file.write_bytes(b"one")
    contents.contents(file, cache)
    assert not cache.exists()


def test_all_chunks_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "CHUNK", 2)
    file = tmp_path / "weights"
    found = set()
    for data in (b"", b"a", b"ab", b"abc", b"abd", b"abcd", b"cdab"):
        file.write_bytes(data)
        found.add(contents.contents(file, None))
    assert len(found) == 7
