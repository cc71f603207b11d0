"""A conversion reads the file once, and what transformers makes of it is what it makes of the file by itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import gguf
import pytest
import torch
from gguf.tensor_mapping import TensorNameMap
from tiny_models import FAMILIES, make_tiny_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

from load.gguf_files import split_gguf, write_gguf
from services.errors import ModelError
from services.models.converter import convert_gguf
from services.models.gguf_file import read_gguf
from services.models.gguf_once import already_read, names_of, without_pieces


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("once")
    return write_gguf(make_tiny_model(folder / "llama", "llama", 300), folder / "model.gguf", lambda _: "Q8_0")


@pytest.mark.parametrize("parts", [1, 2])
def test_a_conversion_reads_each_file_once(
    parts: int, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = file if parts == 1 else split_gguf(file, parts)[0]
    made: Counter[type] = Counter()
    for kind in (gguf.GGUFReader, TensorNameMap):

        def counted(self, *given, kind=kind, before=kind.__init__, **named):
            made[kind] += 1
            before(self, *given, **named)

        monkeypatch.setattr(kind, "__init__", counted)
    (tmp_path / "converted").mkdir()
    convert_gguf(first, tmp_path / "converted", tmp_path)
    assert made == {gguf.GGUFReader: parts, TensorNameMap: 1}


def test_config_and_tokenizer_are_those_of_the_file(file: Path, tmp_path: Path) -> None:
    reader = read_gguf(file)
    for folder in (tmp_path / "theirs", tmp_path / "ours"):
        if folder.name == "theirs":
            made = [kind.from_pretrained(file.parent, gguf_file=file.name) for kind in (AutoConfig, AutoTokenizer)]
        else:
            with already_read(reader.fields, reader.tensors):
                made = [kind.from_pretrained(file.parent, gguf_file=file.name) for kind in (AutoConfig, AutoTokenizer)]
        for each in made:
            each.save_pretrained(folder)
    theirs = {path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "ours").iterdir()} == theirs
    assert {"config.json", "tokenizer.json"} <= theirs.keys()


def test_a_config_needs_no_pieces(file: Path, tmp_path: Path) -> None:
    reader = read_gguf(file)
    with already_read(without_pieces(reader.fields), reader.tensors):
        config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    assert config.to_dict() == AutoConfig.from_pretrained(file.parent, gguf_file=file.name).to_dict()


@pytest.mark.parametrize(
    "name", ["tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "general.architecture", "llama.block_count"]
)
def test_fields_are_those_of_the_package(name: str, file: Path) -> None:
    theirs, ours = gguf.GGUFReader(file).fields[name], read_gguf(file).fields[name]
    assert (ours.contents(), ours.types, ours.offset) == (theirs.contents(), theirs.types, theirs.offset)
    assert [ours.parts[i].tolist() for i in ours.data] == [theirs.parts[i].tolist() for i in theirs.data]


@pytest.mark.parametrize("size", [1 << 40, (1 << 64) - 1])
def test_a_string_that_does_not_end_is_refused(size: int, file: Path, tmp_path: Path) -> None:
    data = bytearray(file.read_bytes())
    at = data.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 16  # behind types and count
    data[at : at + 8] = size.to_bytes(8, "little")
    (tmp_path / "broken.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=r"the header of broken.gguf, which has [\d,]+ bytes, cannot be read"):
        read_gguf(tmp_path / "broken.gguf")


@pytest.mark.parametrize(
    "family", ["llama", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "gpt2", "stablelm"]
)
def test_names_are_those_of_transformers(family: str) -> None:
    config = AutoConfig.for_model(family, **FAMILIES[family])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    processor = TENSOR_PROCESSORS.get(family.replace("_", ""), TensorProcessor)(config=config.to_dict())
    names = names_of(model, processor)
    assert names == get_gguf_hf_weights_map(model, processor)
    assert len(names) >= len(list(model.parameters())) - 1
