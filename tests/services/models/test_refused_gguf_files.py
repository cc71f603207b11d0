"""GGUF files that cannot be served: the error names the file, what it is, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from unserved_families import REFUSED as REFUSED_FAMILIES

from services.errors import ModelError
from services.models import resolve
from services.models.converter import convert_gguf
from services.models.gguf_file import REFUSED, read_gguf


def write(file: Path, architecture: str, tokenizer: Mapping[str, str] | None = None, tokens: int = 8) -> Path:
    """A small file that says no more of its model than this. `tokenizer`: texts of its metadata, by name."""
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(1)
    for name, text in (tokenizer or {}).items():
        writer.add_string(f"tokenizer.ggml.{name}", text)
    if tokenizer and tokens:
        writer.add_token_list([f"t{i}" for i in range(tokens)])
    writer.add_tensor("token_embd.weight", np.zeros((8, 64), np.float32), raw_dtype=None)
    writer.add_tensor("output_norm.weight", np.zeros(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def convert(file: Path) -> None:
    target = file.with_suffix("")
    target.mkdir()
    convert_gguf(file, target, file.parent)


@pytest.mark.parametrize("architecture", sorted(REFUSED))
def test_an_architecture_that_is_not_served_is_refused_before_conversion(architecture: str, tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=f"architecture '{architecture}', which is not served: {REFUSED[architecture]}"
    ):
        convert(write(tmp_path / "model.gguf", architecture))


def test_the_reasons_are_those_of_the_families() -> None:
    shared = REFUSED.keys() & REFUSED_FAMILIES.keys() - {"mamba"}  # its files have a length
    assert shared == {"bloom", "falcon"}
    assert all(REFUSED[name] == REFUSED_FAMILIES[name][1] for name in shared)


def test_another_failure_names_the_architecture(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"it is of the architecture 'foo': ValueError: .*'?foo'? is not supported"):
        convert(write(tmp_path / "model.gguf", "foo", {"model": "llama"}))


@pytest.mark.parametrize(
    ("tokenizer", "tokens", "why"),
    [
        ({}, 0, r"it has no tokenizer \(tokenizer\.ggml\.model and tokenizer\.ggml\.tokens\)"),
        ({"model": "no_vocab"}, 8, "it has no tokenizer"),
        ({"model": "llama"}, 0, "it has no tokenizer"),
        ({"model": "gpt2", "pre": "smollm"}, 8, r"no merges \(tokenizer\.ggml\.merges\)"),
        *(({"model": kind}, 8, f"of the kind '{kind}'.*not served") for kind in ("bert", "t5", "rwkv", "plamo2", "x")),
    ],
)
def test_a_tokenizer_that_is_not_served_is_named(
    tokenizer: dict[str, str], tokens: int, why: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=why):
        convert(write(tmp_path / "model.gguf", "llama", tokenizer, tokens))


def test_the_file_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", "mamba")
    with pytest.raises(ModelError, match=f"^{file} cannot be converted: it is of the architecture 'mamba'"):
        resolve(str(file), tmp_path / "cache")


def test_a_truncated_file_is_named_with_both_sizes(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", "llama")
    whole = file.stat().st_size
    read_gguf(file)
    file.write_bytes(file.read_bytes()[: whole - 200])
    with pytest.raises(
        ModelError, match=rf"model\.gguf is truncated: it has {whole - 200:,} bytes, by its header {whole:,}"
    ):
        read_gguf(file)


@pytest.mark.parametrize("kept", [0, 3, 30, 120])
def test_a_file_without_a_whole_header_is_named(kept: int, tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", "llama")
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ModelError, match=rf"the header of model\.gguf, which has {kept} bytes, cannot be read: "):
        read_gguf(file)
