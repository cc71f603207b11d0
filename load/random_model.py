"""Transformers folders and GGUF files with random weights, which can be served: speed, and whether tokens stay the
same, can be measured without the weights of a real model. The tokenizer is byte-level BPE of any size, with ChatML as
its chat template."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from load.gguf_files import write_gguf
from load.workloads import BEGINNINGS, QUESTIONS, WORDS
from services.engine.weights.random_tensors import RandomTensors

TEXT = " ".join((*WORDS, *QUESTIONS, *BEGINNINGS))  # each word is a token, if the vocabulary has room for it
SPECIAL_TOKENS = ["<|im_start|>", "<|im_end|>", "</s>"]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GGUF = ("Q4_0", "Q8_0", "Q6_K", "Q4_K_M")  # ggml's types, and the mix that llama.cpp's quantizer makes of two
MERGED = "the quick brown fox and the lazy dog; what is the capital of france? hello world, thanks " * 4


def save_tokenizer(folder: Path, vocab_size: int, text: str = MERGED) -> None:
    """Write the files of a tokenizer with `vocab_size` tokens, at least 259, to `folder`: 256 bytes, the merges of
    `text`, unused fillers, the special tokens last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    fillers = vocab_size - len(SPECIAL_TOKENS) - tokenizer.get_vocab_size()
    tokenizer.add_tokens([f"filler{i}" for i in range(fillers)])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    assert tokenizer.get_vocab_size() == vocab_size
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "chat_template": CHATML,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    (folder / "chat_template.jinja").write_text(CHATML)


def save_random_model(folder: Path, config: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Write a model of transformers' `config` to `folder`, which is created: a tokenizer with all its ids, and weights
    in `dtype`. They are drawn on `device`: a GPU does that in a tenth of the time."""
    drawn = RandomTensors(config, dtype, device)
    config.dtype = dtype
    config.save_pretrained(folder)
    save_file({name: drawn.read(name).cpu() for name in drawn.names}, folder / "model.safetensors", {"format": "pt"})
    save_tokenizer(folder, config.vocab_size, TEXT)


def save_random_gguf(file: Path, config: Any, form: str) -> None:
    """Write a model of transformers' `config` as a GGUF file with such a tokenizer, in one of `GGUF`."""
    layers = int(config.num_hidden_layers)

    def more(layer: int) -> bool:
        return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2

    def kind_of(name: str) -> str:
        place, _, part = name.removeprefix("blk.").partition(".")
        wide = more(int(place)) and part.startswith(("attn_v", "ffn_down")) if place.isdigit() else True
        return form if form != "Q4_K_M" else "Q6_K" if wide else "Q4_K"

    with TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        save_tokenizer(Path(folder), config.vocab_size, TEXT)
        write_gguf(Path(folder), file, kind_of, weights=False)
