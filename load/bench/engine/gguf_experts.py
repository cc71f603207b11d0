"""`python -m load.bench.engine.gguf_experts FILE`: a GGUF file of a model with experts, for `--model` of benchmarks.

Layers have the shapes of Qwen3 30B-A3B, as in `load.bench.engine.families`, and random blocks. llama.cpp's converter
writes the experts of a layer as one tensor, and so does this.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from load.bench.engine.families import config_of

MODEL = "Qwen3 30B-A3B"
# where a block has scales in float16, and their largest value, so that weights deviate by a few hundredths. Their mean
# has to be 0, else all tokens would have the same experts: the second scale of Q4_K, which is subtracted, is the first
# times the mean of the codes
SCALES = {
    "Q4_0": {0: 0.006},
    "Q8_0": {0: 0.0004},
    "Q4_K": {0: 0.0002, 2: 7.5 * 0.0002},
    "Q6_K": {208: 0.00002},
}


def write_file(config: Any, file: Path, kind: str) -> None:
    """The model of this config (`qwen3_moe`) with a tokenizer of bytes. `kind`: ggml's type of its products; routers
    and norms are F32."""
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.QWEN3MOE])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, config.vocab_size)
    rng = np.random.default_rng(0)
    for name, shape in _tensors(config):
        if len(shape) == 1 or "ffn_gate_inp" in name:
            numbers = rng.normal(1.0 if len(shape) == 1 else 0.0, 0.02, shape).astype(np.float32)
            writer.add_tensor(name, numbers)
        else:
            writer.add_tensor(name, _blocks(rng, kind, shape), raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    pieces = sorted(ByteLevel.alphabet())
    pieces += [f"{first}{second}" for first in pieces for second in pieces][: size - len(pieces)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(pieces)
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
    writer.add_token_merges([" ".join(piece) for piece in pieces if len(piece) == 2])
    writer.add_eos_token_id(size - 1)


def _tensors(config: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """llama.cpp's names, and shapes as transformers has them."""
    hidden, inner, experts = config.hidden_size, config.moe_intermediate_size, config.num_experts
    queries, keys = (count * config.head_dim for count in (config.num_attention_heads, config.num_key_value_heads))
    layer = {
        "attn_norm": (hidden,),
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_q_norm": (config.head_dim,),
        "attn_k_norm": (config.head_dim,),
        "attn_output": (hidden, queries),
        "ffn_norm": (hidden,),
        "ffn_gate_inp": (experts, hidden),
        "ffn_gate_exps": (experts, inner, hidden),
        "ffn_up_exps": (experts, inner, hidden),
        "ffn_down_exps": (experts, hidden, inner),
    }
    yield "token_embd.weight", (config.vocab_size, hidden)
    yield "output.weight", (config.vocab_size, hidden)
    yield "output_norm.weight", (hidden,)
    for i in range(config.num_hidden_layers):
        yield from ((f"blk.{i}.{name}.weight", shape) for name, shape in layer.items())


def _blocks(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random blocks [..., bytes of a row]."""
    numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    count = math.prod(shape) // numbers
    blocks = np.frombuffer(bytearray(rng.bytes(count * size)), np.uint8).reshape(count, size)
    for place, scale in SCALES[kind].items():
        drawn = rng.uniform(scale / 2, scale, (count, 1)).astype(np.float16)
        blocks[:, place : place + 2] = drawn.view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m load.bench.engine.gguf_experts", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--kind", choices=list(SCALES), default="Q4_K", help="ggml's type of the products")
    parser.add_argument("--layers", type=int, help="how many; 2 unless given")
    given = parser.parse_args(arguments)
    config = config_of(MODEL)
    config.num_hidden_layers = given.layers or config.num_hidden_layers
    write_file(config, given.file, given.kind)


if __name__ == "__main__":
    main()
