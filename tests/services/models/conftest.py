"""A tiny random Llama with a byte-level tokenizer, as a transformers folder and as a GGUF file."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from services.models import local
from services.models.converter import main

TEMPLATE = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


@pytest.fixture
def converts_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process convert models, as it has imported transformers. test_local_models.py shows the other one."""
    monkeypatch.setattr(local, "convert", lambda source, target, progress: main(source, target))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<turn>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, special_tokens=special)
    tokenizer.train_from_iterator(["the cat sat on the mat 1 1 1 1"], trainer)
    size = tokenizer.get_vocab_size()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=HEADS * HEAD_DIM,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=128,
        initializer_range=0.5,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_gguf(tiny: Path) -> Path:
    """The same model as a GGUF file with float32 weights and the name of SmolLM's splitter."""
    import json

    raw = json.loads((tiny / "tokenizer.json").read_text())
    pieces = sorted(raw["model"]["vocab"], key=raw["model"]["vocab"].__getitem__)
    path = tiny.parent / "tiny.F32.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HEADS * HEAD_DIM)
    writer.add_block_count(2)
    writer.add_feed_forward_length(48)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(pieces))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(pieces)
    writer.add_token_types([3 if i < 4 else 1 for i in range(len(pieces))])
    writer.add_token_merges([" ".join(merge) for merge in raw["model"]["merges"]])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(3)
    writer.add_chat_template(TEMPLATE)
    for name, weight in LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32).state_dict().items():
        writer.add_tensor(_gguf_name(name), _gguf_order(name, weight.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    found = names.get_name(name.removesuffix(".weight"))
    assert found is not None, name
    return f"{found}.weight"


def _gguf_order(name: str, weight: np.ndarray) -> np.ndarray:
    """Permute like llama.cpp, which interleaves the two halves that are rotated together."""
    heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else 0
    if not heads:
        return weight
    return weight.reshape(heads, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(weight.shape).copy()
