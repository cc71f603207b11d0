"""The table of GGUF files, of a tiny one. Without llama.cpp, whose columns are empty then."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_files import write_gguf
from tiny_models import make_tiny_model

from load.bench.gguf_formats import main
from services.files import user_cache


def test_a_file_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_tiny_model(tmp_path / "tiny", "llama", 1000, max_position_embeddings=128)
    file = write_gguf(made, tmp_path / "tiny.Q8_0.gguf", lambda name: "BF16" if name == "output.weight" else "Q8_0")
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kernels").symlink_to(user_cache() / "kernels")  # which are compiled already
    main([str(file), "--dtype", "bfloat16", "--cache-dir", str(cache)])
    row = capsys.readouterr().out.splitlines()[-1].strip("| ").split("|")
    name, tensors, _, bits, kept, auto, dtype = (cell.strip() for cell in row[:7])
    assert (name, tensors, kept) == ("Q8_0", "15 Q8_0, 1 BF16", "15 of 16")
    assert 8.5 < float(bits) < 16
    assert auto == dtype
    assert float(auto) > 1
