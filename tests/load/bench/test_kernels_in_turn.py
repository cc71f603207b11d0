"""The comparison of kernels runs. Its figures are not checked: they need a quiet machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny_models import make_tiny_model

from load.bench import kernels_in_turn
from services.engine.backends.cpu.build import SOURCE


def test_each_kind_has_a_line_for_each_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_tiny_model(tmp_path / "tiny", max_position_embeddings=1024)
    other = os.path.relpath(SOURCE)
    kernels_in_turn.main([str(SOURCE), other, "--model", str(model), "--dtype", "float32"], steps=2)
    printed = capsys.readouterr().out
    assert [kind for kind in kernels_in_turn.KINDS if f"\n{kind}, ms:\n" in printed] == list(kernels_in_turn.KINDS)
    assert printed.count(f"| {SOURCE} | 1.000 |") == printed.count(f"| {other} | ") == len(kernels_in_turn.KINDS)
    assert "nan" not in printed


def test_each_form_of_weights_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_tiny_model(tmp_path / "tiny", max_position_embeddings=1024)
    arguments = [str(SOURCE), "--model", str(model), "--kind", "increment, batch 1", "--dtype", "bfloat16"]
    kernels_in_turn.main([*arguments, "--weights", "dtype", "--weights", "int8"], steps=2)
    printed = capsys.readouterr().out
    assert f"| {SOURCE} dtype | 1.000 |" in printed
    assert f"| {SOURCE} int8 | " in printed
