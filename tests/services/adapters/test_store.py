"""Copies of adapters' folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.adapters.peft import CONFIG
from services.adapters.store import MOST_CONFIG, draft_of


def test_a_folder_in_place_of_a_file_leaves_nothing_open(tmp_path: Path) -> None:
    source, files = tmp_path / "source", tmp_path / "files"
    (source / CONFIG).mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(IsADirectoryError):
        draft_of(source, files, "model", 100)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not list((files / "adapters").iterdir())


def test_a_config_is_small(tmp_path: Path) -> None:
    source, files = tmp_path / "source", tmp_path / "files"
    source.mkdir()
    (source / CONFIG).write_bytes(b" " * MOST_CONFIG)
    draft_of(source, files, "model", 2 * MOST_CONFIG)
    (source / CONFIG).write_bytes(b" " * (MOST_CONFIG + 1))
    with pytest.raises(ValueError, match=f"{CONFIG} is too large: {MOST_CONFIG} bytes are left for it"):
        draft_of(source, files, "model", 2 * MOST_CONFIG)
