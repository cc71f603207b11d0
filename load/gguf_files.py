"""GGUF files of transformers folders, as llama.cpp's converter names and orders their tensors, and of random weights in
any of ggml's types."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from services.engine.weights.random_tensors import DEVIATION
from services.engine.weights.tensors import Checkpoint

Kind: Any = gguf.GGMLQuantizationType
ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "lfm2": "lfm2",
}
# where a block of random bytes has float16 numbers: a scale and, if there is a second one, that of the offsets
HALVES = {
    "Q4_0": (0,),
    "Q5_0": (0,),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
# of a matrix whose inputs are no whole blocks, as llama.cpp's quantizer has them
FALLBACKS = {Kind.Q4_K: Kind.Q5_0, Kind.Q6_K: Kind.Q8_0}


def write_gguf(
    folder: Path,
    file: Path,
    kind_of: Callable[[str], str] = lambda _: "F32",
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    splitter: str = "smollm",
    weights: bool = True,
) -> Path:
    """The model in `folder`, with a BPE tokenizer, as a GGUF file. `kind_of`: ggml's type of each matrix, by its name
    in the file. `metadata`: further numbers and texts, by what follows the architecture's name. `weights`: whether the
    folder has them; else matrices are random blocks of a type in `HALVES`, and norms are 1."""
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    checkpoint = Checkpoint(folder) if weights else None
    writer = gguf.GGUFWriter(file, ARCHITECTURES[config.model_type], use_temp_file=True)  # it may exceed the memory
    _write_config(writer, config)
    _write_tokenizer(writer, folder, splitter)
    for name, value in (metadata or {}).items():
        add: Any = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{writer.arch}.{name}", value)
    architecture = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[writer.arch]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    drawn = np.random.default_rng(0)
    for name, shape in ((name, tuple(weight.shape)) for name, weight in model.state_dict().items()):
        if name not in tied:
            named = f"{names.get_name(name.rpartition('.')[0])}.{name.rpartition('.')[2]}"
            kind = Kind[kind_of(named) if len(shape) == 2 else "F32"]
            if checkpoint:
                numbers = _as_llama_cpp(config, name, checkpoint.read(name).float().numpy())
                stored = numbers if kind == Kind.F32 else _quantized(numbers, kind, drawn)
            else:
                if len(shape) == 2 and shape[1] % gguf.GGML_QUANT_SIZES[kind][0]:
                    kind = FALLBACKS[kind]
                stored = _random(shape, kind, drawn) if len(shape) == 2 else np.ones(shape, np.float32)
            writer.add_tensor(named, stored, raw_dtype=kind)
    for name, numbers in (tensors or {}).items():
        writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def split_gguf(file: Path, count: int) -> list[Path]:
    """The file in parts, as llama.cpp's `llama-gguf-split` makes them: the first has the metadata."""
    reader = gguf.GGUFReader(file)
    parts = [file.with_name(f"{file.stem}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    for i, part in enumerate(parts):
        writer = gguf.GGUFWriter(part, reader.fields["general.architecture"].contents())
        for name, field in reader.fields.items() if i == 0 else ():
            if name != "general.architecture" and not name.startswith("GGUF."):
                kind = field.types[0]
                item = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(name, field.contents(), kind, item)
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[i::count]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return parts


def _write_config(writer: gguf.GGUFWriter, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(_kv_heads(config))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(getattr(config, "rms_norm_eps", None) or config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if writer.arch == "lfm2":
        writer.add_shortconv_l_cache(config.conv_L_cache)
    if writer.arch.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)


def _kv_heads(config: Any) -> int | list[int]:
    """The number of heads of keys; a list of one for each layer, if some have a convolution in place of attention."""
    kinds = getattr(config, "layer_types", None) or []
    if "conv" not in kinds:
        return int(config.num_key_value_heads)
    return [0 if kind == "conv" else config.num_key_value_heads for kind in kinds]


def _write_tokenizer(writer: gguf.GGUFWriter, folder: Path, splitter: str) -> None:
    raw = json.loads((folder / "tokenizer.json").read_text())
    types = {token["content"]: 3 if token["special"] else 4 for token in raw["added_tokens"]}  # ggml's numbers
    special = {token["content"]: token["id"] for token in raw["added_tokens"]}
    vocabulary = raw["model"]["vocab"] | special
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitter)
    writer.add_token_list(pieces)
    writer.add_token_types([types.get(piece, 1) for piece in pieces])
    writer.add_token_merges([" ".join(merge) for merge in raw["model"]["merges"]])
    given = json.loads((folder / "tokenizer_config.json").read_text())
    adders = {"unk": writer.add_unk_token_id, "bos": writer.add_bos_token_id, "eos": writer.add_eos_token_id}
    for name, add in adders.items():
        if given.get(f"{name}_token") in special:
            add(special[given[f"{name}_token"]])
    for turn in ("<turn>", "<|im_end|>"):
        if turn in special:
            writer.add_eot_token_id(special[turn])
    if (folder / "chat_template.jinja").exists():
        writer.add_chat_template((folder / "chat_template.jinja").read_text())


def _as_llama_cpp(config: Any, name: str, weight: np.ndarray) -> np.ndarray:
    """Return a weight as llama.cpp stores it: halves of Llama's heads that are rotated together are interleaved, and
    Gemma's norms are 1 more."""
    if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
        return weight + 1
    if name.endswith("conv.conv.weight"):
        return weight[:, 0]
    counts = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    heads = next((count for part, count in counts.items() if part in name), 0)
    if config.model_type != "llama" or not heads:
        return weight
    dim = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, dim, -1).swapaxes(1, 2).reshape(weight.shape).copy()


def _quantized(numbers: np.ndarray, kind: Any, drawn: np.random.Generator) -> np.ndarray:
    """The numbers in this type; where the package gguf cannot write it, random blocks."""
    try:
        return gguf.quantize(numbers, kind)
    except NotImplementedError:
        return _random(numbers.shape, kind, drawn)


def _random(shape: Sequence[int], kind: Any, drawn: np.random.Generator) -> np.ndarray:
    """Random blocks, whose numbers have about the mean 0 and the deviation of other random weights."""
    count, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = drawn.integers(0, 256, (shape[0], shape[1] // count, size), dtype=np.uint8)
    sample, places = drawn.integers(0, 256, (1024, size), dtype=np.uint8), HALVES[kind.name]

    def fill(rows: np.ndarray, *scales: Any) -> np.ndarray:
        for at, scale in zip(places, scales, strict=True):
            rows[..., at : at + 2] = np.asarray(scale, np.float16)[..., None].view(np.uint8)
        return rows

    scaled, *offset = (gguf.dequantize(fill(sample, *(float(at == one) for at in places)), kind) for one in places)
    scales = [1.0, *(-scaled.mean() / one.mean() for one in offset)]
    factor = DEVIATION / gguf.dequantize(fill(sample, *scales), kind).std()
    varied = drawn.uniform(0.5, 1.5, (len(scales), *blocks.shape[:2])) * factor
    return fill(blocks, *(scale * own for scale, own in zip(scales, varied, strict=True))).reshape(shape[0], -1)
