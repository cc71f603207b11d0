"""A tiny random Llama with a byte-level tokenizer, as a transformers folder and as a GGUF file."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from load.gguf_files import write_gguf
from services.models import local
from services.models.converter import main

TEMPLATE = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"


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
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
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
    return write_gguf(tiny, tiny.parent / "tiny.F32.gguf")
