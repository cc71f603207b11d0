"""The tokenizer of a tiny model: each byte and some words are tokens, with a small chat template."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ["<eos>", "<user>", "<assistant>", "<system>"]
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.content == 'refuse me' %}{{ raise_exception('The template refuses this.') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MERGED = ["the", "Ġthe", "hello", "Ġworld"]


def make_folder(folder: Path, backwards: bool = False, length: int = 512) -> Path:
    """Writes tokenizer.json, tokenizer_config.json and config.json of a model without weights. `backwards`: the bytes
    have other token ids. `length`: that of the longest text."""
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=backwards))}
    merges = []
    for word in MERGED:
        for end in range(2, len(word) + 1):
            pair = (word[: end - 1], word[end - 1])
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
                merges.append(pair)
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<eos>"}))
    size, eos = tokenizer.get_vocab_size(), tokenizer.token_to_id("<eos>")
    config = {"model_type": "tiny", "max_position_embeddings": length, "vocab_size": size, "eos_token_id": eos}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
