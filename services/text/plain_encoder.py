"""The library's tokenizer, and what encodes texts in which nothing is a special token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tokenizers

from services.errors import ModelError


def load_backend(folder: Path) -> tokenizers.Tokenizer:
    """The library's tokenizer by the tokenizer.json in `folder`, which neither cuts nor fills up texts. Raises
    ModelError."""
    path = folder / "tokenizer.json"
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path} cannot be read: {error}") from None
    backend.no_truncation()
    backend.no_padding()
    return backend


def plain_encoder(folder: Path) -> Callable[[str], list[int]]:
    """A function from a text to its token ids; the spelling of a special token is plain text for it. Can be used by
    several threads. Raises ModelError."""
    backend = load_backend(folder)
    backend.encode_special_tokens = True

    def encode(text: str) -> list[int]:
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    return encode
