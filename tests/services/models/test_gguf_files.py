"""GGUF files of all types and several families: the converted numbers, and what a file says beside its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_models import make_tiny_model
from tokenizers import Tokenizer as Backend
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from load.gguf_files import HALVES, split_gguf, write_gguf
from services.engine.weights.tensors import Checkpoint
from services.errors import ModelError
from services.models import ModelInfo, resolve
from services.models.converter import convert_gguf, main
from services.models.gguf_file import parts_of, read_gguf
from services.models.gguf_index import KINDS, GgufIndex, Place
from services.models.gguf_rotary import complete_config
from services.text import Tokenizer

TYPES = ("Q4_1", "Q5_1", *HALVES, "BF16")


def type_of(name: str) -> str:
    """Another type for each product of the two layers."""
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 2
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "token_embd", "output")
    index = next(i for i, part in enumerate(parts) if name.rpartition(".")[0].endswith(part))
    return TYPES[(7 * layer + index) % len(TYPES)] if layer < 2 else "Q6_K"


def converted(file: Path, target: Path) -> Path:
    target.mkdir()
    convert_gguf(file, target, target.parent)
    return target


def places_in(folder: Path) -> dict[str, Place]:
    index = GgufIndex.read(folder)
    assert index is not None
    return index.places


def config_of(file: Path, target: Path) -> Any:
    return AutoConfig.from_pretrained(converted(file, target))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    return make_tiny_model(tmp_path_factory.mktemp("gguf") / "llama", "llama", 300, head_dim=64, **rope)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text"])
def test_weights_of_all_types_are_the_numbers_of_the_package(family: str, tmp_path: Path) -> None:
    """The order of rows and the norms are those of the original, the numbers those of the blocks."""
    size = {"hidden_size": 256, "intermediate_size": 256, "tie_word_embeddings": family == "gemma2"}
    # files of Qwen3 do not say how wide heads are to transformers, all of them have 128
    size |= {"head_dim": 128, "num_attention_heads": 2} if family == "qwen3" else {"head_dim": 64}
    original = make_tiny_model(tmp_path / "original", family, 300, **size)
    exact = write_gguf(original, tmp_path / "exact.gguf")
    mixed = write_gguf(original, tmp_path / "mixed.gguf", type_of)
    weights = Checkpoint(converted(exact, tmp_path / "exact"))
    for name, weight in load_file(original / "model.safetensors").items():
        assert torch.allclose(weights.read(name), weight, rtol=0, atol=1e-6), name  # Gemma's norms plus and minus 1

    folder = converted(mixed, tmp_path / "mixed")
    checkpoint = Checkpoint(folder)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.removesuffix("_text").upper()], 2)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(mixed).tensors}
    numbers, kept, seen = load_file(folder / "model.safetensors"), places_in(folder), set()
    assert kept.keys().isdisjoint(numbers)
    assert kept.keys() | numbers.keys() == set(checkpoint.names) == set(weights.names)
    for name in checkpoint.names:
        weight = checkpoint.read(name)
        if weight.ndim == 2:
            tensor = stored[f"{names.get_name(name.removesuffix('.weight'))}.weight"]
            kind = tensor.tensor_type.name
            expected = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
            if family == "llama" and ("q_proj" in name or "k_proj" in name):
                heads = 4 if "q_proj" in name else 2
                expected = expected.view(heads, -1, 2, expected.shape[1]).transpose(1, 2).reshape(expected.shape)
            assert torch.equal(weight, expected.bfloat16()), (name, kind)
            assert (name in kept) == (kind in KINDS or kind == "BF16"), (name, kind)
            seen.add(kind)
    assert seen >= set(TYPES)


@pytest.mark.parametrize(
    ("kind", "metadata", "expected"),
    [
        ("linear", {"factor": 8.0}, {"factor": 8.0}),
        (
            "yarn",
            {"factor": 4.0, "original_context_length": 64},
            {"factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_scaled_rotary_embeddings(
    kind: str, metadata: dict[str, Any], expected: dict[str, Any], llama: Path, tmp_path: Path
) -> None:
    scaling = {f"rope.scaling.{name}": value for name, value in ({"type": kind} | metadata).items()}
    rope = config_of(write_gguf(llama, tmp_path / "a.gguf", metadata=scaling), tmp_path / "a").rope_parameters
    assert rope.items() >= ({"rope_type": kind, "rope_theta": 500000.0} | expected).items()


def test_the_linear_scaling_of_gemma_3_belongs_to_layers_without_a_window(tmp_path: Path) -> None:
    original = make_tiny_model(tmp_path / "gemma", "gemma3_text", 300)
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    rope = config_of(write_gguf(original, tmp_path / "a.gguf", metadata=scaling), tmp_path / "a").rope_parameters
    theirs = AutoConfig.from_pretrained(original).rope_parameters
    assert rope["full_attention"] == theirs["full_attention"]
    assert rope["sliding_attention"]["rope_type"] == "default"


def llama3_factors(llama: Path, **changed: float) -> np.ndarray:
    config = AutoConfig.from_pretrained(llama)
    config.rope_parameters |= {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        **changed,
    }
    plain = 500000.0 ** -(torch.arange(0, 64, 2) / 64)
    return (plain / ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0]).numpy()


def test_the_factors_of_llama_3_are_recognized(llama: Path, tmp_path: Path) -> None:
    tensors = {"rope_freqs.weight": llama3_factors(llama)}
    config = config_of(write_gguf(llama, tmp_path / "a.gguf", tensors=tensors), tmp_path / "a")
    assert config.rope_parameters["rope_type"] == "llama3"
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 500000.0 ** -(torch.arange(0, 64, 2) / 64)
    assert torch.allclose(frequencies, plain / torch.from_numpy(tensors["rope_freqs.weight"]), rtol=1e-6)


def test_rotary_embeddings_that_are_not_read_are_refused(llama: Path, tmp_path: Path) -> None:
    others = {"rope_freqs.weight": llama3_factors(llama, low_freq_factor=2.0)}
    with pytest.raises(ModelError, match=r"'rope_freqs\.weight' are not those of Llama 3"):
        converted(write_gguf(llama, tmp_path / "a.gguf", tensors=others), tmp_path / "a")
    scaling = {"rope.scaling.type": "longrope"}
    with pytest.raises(ModelError, match="type 'longrope' are not read"):
        converted(write_gguf(llama, tmp_path / "b.gguf", metadata=scaling), tmp_path / "b")


def test_the_largest_gemma_scales_attention_by_its_width(tmp_path: Path) -> None:
    original = make_tiny_model(tmp_path / "gemma", "gemma2", 300, tie_word_embeddings=True)
    reader = read_gguf(write_gguf(original, tmp_path / "a.gguf"))
    for layers, expected in ((46, 64 // 4), (42, 24)):
        config = AutoConfig.from_pretrained(original, num_hidden_layers=layers, layer_types=None)
        complete_config(config, reader.fields, reader.tensors)
        assert config.query_pre_attn_scalar == expected


def test_parts_are_one_model(llama: Path, tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": llama3_factors(llama)}
    whole = write_gguf(llama, tmp_path / "model.gguf", lambda _: "Q8_0", tensors=factors)
    parts = split_gguf(whole, 3)
    assert parts_of(parts[0]) == parts
    folder, expected = tmp_path / "parts", converted(whole, tmp_path / "whole")
    main(parts[0], folder)
    assert {file.name for file in folder.iterdir()} == {file.name for file in expected.iterdir()}
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name
    found, whole_found = Checkpoint(folder), Checkpoint(expected)
    assert set(found.names) == set(whole_found.names)
    assert all(torch.equal(found.read(name), whole_found.read(name)) for name in found.names)
    assert {place.file for place in places_in(folder).values()} == {0, 1, 2}
    with pytest.raises(ModelError, match=r"part 2 of 3; name the first: .*model-00001-of-00003\.gguf"):
        parts_of(parts[1])
    parts[2].unlink()
    with pytest.raises(ModelError, match=r"absent in its folder: model-00003-of-00003\.gguf"):
        parts_of(parts[0])


def test_a_file_that_lacks_a_tensor_is_refused(llama: Path, tmp_path: Path) -> None:
    """transformers would draw it at random."""
    parts = split_gguf(write_gguf(llama, tmp_path / "model.gguf"), 10)
    with pytest.raises(ModelError, match=r"lacks \d+ tensors of its model, such as model\.layers\.0\.input_layernorm"):
        converted(parts[0].rename(tmp_path / "first.gguf"), tmp_path / "first")


@pytest.mark.parametrize(("number", "why"), [(41, "the type Q1_0"), (99, "ggml's type 99")])
def test_a_type_that_is_not_read_is_named(number: int, why: str, llama: Path, tmp_path: Path) -> None:
    file = write_gguf(llama, tmp_path / "odd.gguf", lambda name: "Q8_0" if "ffn_up" in name else "F32")
    raw, name = bytearray(file.read_bytes()), b"blk.0.ffn_up.weight"
    place = raw.index(name) + len(name) + 4 + 2 * 8  # after the number of dimensions, and two of them
    assert raw[place] == gguf.GGMLQuantizationType.Q8_0
    raw[place : place + 4] = number.to_bytes(4, "little")
    file.write_bytes(raw)
    with pytest.raises(ModelError, match=rf"tensor 'blk\.0\.ffn_up\.weight' has {why}, which is not served"):
        converted(file, tmp_path / "odd")


@pytest.mark.parametrize(
    ("splitter", "pieces"), [("llama-bpe", ["123", "4"]), ("qwen2", ["1", "2", "3", "4"]), ("smollm", [*"1234"])]
)
def test_text_is_split_as_the_vocabulary_was_trained(splitter: str, pieces: list[str], tmp_path: Path) -> None:
    original = make_tiny_model(tmp_path / "qwen", "qwen2", 300)
    folder = converted(write_gguf(original, tmp_path / "a.gguf", splitter=splitter), tmp_path / "a")
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    split = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("1234")]
    assert split == pieces
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.special_ids == {297, 298, 299}
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert ends == [299, 298]  # the end of text, and of a turn
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]).startswith(
        "<|im_start|>user\nhi<|im_end|>"
    )


def test_a_file_that_names_no_end_has_none(tmp_path: Path) -> None:
    """Token 2 ends an answer by the class of Llama's config, not by the file."""
    original = make_tiny_model(tmp_path / "llama", "llama", 300)
    for file in original.glob("*.jinja"):
        file.unlink()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (original / name).read_text().replace("<|im_end|>", "<|one|>").replace("</s>", "<|two|>")
        (original / name).write_text(text.replace("eos_token", "other_token"))
    folder = converted(write_gguf(original, tmp_path / "a.gguf"), tmp_path / "a")
    assert AutoConfig.for_model("llama").eos_token_id == 2
    assert ModelInfo.load(folder).eos_token_ids == frozenset()


@pytest.mark.usefixtures("converts_here")
def test_a_file_that_does_not_say_how_text_is_split_is_served_with_a_warning_at_each_start(tmp_path: Path) -> None:
    file = write_gguf(make_tiny_model(tmp_path / "llama", "llama", 300), tmp_path / "a.gguf", splitter="")
    starts: list[list[str]] = [[], []]
    for lines in starts:
        resolve(str(file), tmp_path / "cache", lines.append)
    assert starts[0][-1:] == starts[1]
    assert starts[1][0].startswith("warning: a.gguf: the file does not say how its vocabulary splits text")
