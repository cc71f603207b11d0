"""Small tokenizers of each kind, which are trained in the fixtures."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = ["the cat sat on the mat, then the cats sat down", "über façade — 東京 🎉", "stop! stopping at   12 stops"] * 3
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte-level BPE with a special token and an added token that is not special and not in the alphabet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=["<|end|>"])
    )
    tokenizer.add_tokens([AddedToken("  «é»", normalized=False)])
    return save(tokenizer, tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="session")
def sentencepiece_bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like Llama 2 and Gemma: the normalizer makes spaces visible, and characters without a token are bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(
        ["the cat sat on the mat"], trainers.BpeTrainer(vocab_size=300, special_tokens=[*special, *BYTE_TOKENS])
    )
    return save(unspecial_bytes(tokenizer), tmp_path_factory.mktemp("sentencepiece_bpe"))


@pytest.fixture(scope="session")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unigram with Metaspace, which prepends a space, and byte fallback."""
    pieces = [("<unk>", 0.0), *((byte, -20.0) for byte in BYTE_TOKENS), ("▁the", -2.0), ("▁", -3.0), ("cat", -2.5)]
    pieces += [(letter, -6.0) for letter in "abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    tokenizer.add_special_tokens(["<unk>"])
    return save(tokenizer, tmp_path_factory.mktemp("unigram"))


def unspecial_bytes(tokenizer: Tokenizer) -> Tokenizer:
    """Make byte tokens normal ones. They were special only to be added to the vocabulary."""
    import json

    raw = json.loads(tokenizer.to_str())
    raw["added_tokens"] = [token for token in raw["added_tokens"] if token["content"] not in BYTE_TOKENS]
    return Tokenizer.from_str(json.dumps(raw))


def save(tokenizer: Tokenizer, folder: Path) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
