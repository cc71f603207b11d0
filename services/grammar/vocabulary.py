"""Vocabulary: the tokens of a model as llguidance reads them."""

from __future__ import annotations

from collections.abc import Callable

import llguidance

from services.text.token_bytes import TextTables

Encode = Callable[[str], list[int]]


class Vocabulary:
    """Tokens, special tokens, and the tokens of a text."""

    bos_token_id = None

    def __init__(
        self, tables: TextTables, vocab_size: int, eos_token_ids: list[int], encode: Encode | None = None
    ) -> None:
        """`eos_token_ids` is not empty."""
        tokens = list(tables.of(skip_special_tokens=False).token_bytes[:vocab_size])
        self.tokens = tokens + [b""] * (vocab_size - len(tokens))  # those without bytes are never allowed
        self.special_token_ids = sorted(id for id in tables.special_ids if id < vocab_size)
        self.eos_token_id = eos_token_ids[0]
        self._eos_token_ids = eos_token_ids
        self._encode = encode
        ordinary = [id for id in range(vocab_size) if self.tokens[id] and id not in tables.special_ids]
        self._bytes = {id: self.tokens[id] for id in ordinary}
        self._ids = {self.tokens[id]: id for id in reversed(ordinary)}
        self._longest = max(map(len, self._ids), default=0)

    def tokenizer(self) -> llguidance.LLTokenizer:
        return llguidance.LLTokenizer(llguidance.TokenizerWrapper(self), eos_token=self._eos_token_ids)

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of a forced text. Their bytes are exactly its own: an encoder may add a space before it.

        A long text is cut: a mask needs the first token only, and llguidance drops tokens from the end as far as the
        longest token reaches.
        """
        beginning = text[: 3 * self._longest].decode(errors="ignore")
        text = beginning.encode()
        ids = self._encode(beginning) if self._encode else []
        exact = b"".join(self._bytes.get(id, b"") for id in ids) == text
        return ids if exact else self._longest_tokens(text)

    def _longest_tokens(self, text: bytes) -> list[int]:
        ids, begin = [], 0
        while begin < len(text):
            ends = range(min(len(text), begin + self._longest), begin, -1)
            end = next((end for end in ends if text[begin:end] in self._ids), begin + 1)
            if text[begin:end] in self._ids:
                ids.append(self._ids[text[begin:end]])
            begin = end
        return ids
