"""`bad_words` as token ids, tokenized as vLLM does it."""

from __future__ import annotations

from gateway.errors import ApiError, Kind
from services.text import Tokenizer

Words = tuple[tuple[int, ...], ...]


def bad_word_ids(tokenizer: Tokenizer, words: tuple[str, ...]) -> Words:
    """The token ids of each word at the beginning of a text, and of those behind a space that are as many and begin
    with another token. Spaces before a word do not count. Raises ApiError for a word without tokens."""
    if not words:
        return ()
    bare = [word.lstrip() for word in words]
    encoded = tokenizer.encode_batch([*bare, *(f" {word}" for word in bare)], add_special_tokens=False)
    found: list[tuple[int, ...]] = []
    for word, plain, spaced in zip(words, encoded[: len(bare)], encoded[len(bare) :], strict=True):
        if not plain:
            raise ApiError(Kind.INVALID, f"Invalid 'bad_words': {word!r} has no tokens.", "bad_words")
        found.append(tuple(plain))
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            found.append(tuple(spaced))
    return tuple(dict.fromkeys(found))
