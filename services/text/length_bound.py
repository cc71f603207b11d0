"""LengthBound: a lower bound of the number of tokens of a text, computed without tokenizing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from services.text.token_bytes import ALPHABET

# The most characters that NFC combines into one: Greek letters with three marks.
COMPOSED = 4
ASCII = frozenset(range(0x80))
USED = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}  # bytes of UTF-8
BEHIND = frozenset(range(0x80, 0xC0))  # bytes of a character after its first one

_CUT_NOTHING = {"ByteLevel", "Metaspace", "Digits", "Split", "Punctuation", "UnicodeScripts"}


@dataclass(frozen=True, slots=True)
class LengthBound:
    """A token stands for at most `longest` characters of a text. The characters `left_out` may become no token."""

    longest: int
    left_out: str = ""

    @classmethod
    def of(cls, raw: dict[str, Any], longest_bytes: int) -> Self | None:
        """Return the bound of a tokenizer.json whose longest token has `longest_bytes` bytes. None if there is no
        bound, because the tokenizer may leave out parts of a text.
        """
        normalizers, splitters = _steps(raw.get("normalizer")), _steps(raw.get("pre_tokenizer"))
        left_out = _left_out(raw["model"], [*normalizers, *splitters])
        whole = (
            longest_bytes > 0
            and all(map(_keeps, normalizers))
            and all(step["type"] in _CUT_NOTHING and step.get("behavior") != "Removed" for step in splitters)
            and not any(token.get("lstrip") or token.get("rstrip") for token in raw.get("added_tokens") or [])
        )
        if left_out is None or not whole:
            return None
        return cls(longest_bytes * (COMPOSED if any(step["type"] == "NFC" for step in normalizers) else 1), left_out)

    def least_tokens(self, text: str) -> int:
        """Return a number of tokens that `text` has at least."""
        return (len(text) - sum(map(text.count, self.left_out))) // self.longest


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or a pre-tokenizer."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [step for one in part.get("normalizers") or part.get("pretokenizers") or [] for step in _steps(one)]


def _keeps(normalizer: dict[str, Any]) -> bool:
    """Return whether the output of a normalizer is at least as long as its input. NFC counts as such: it joins up to
    COMPOSED characters into one, which the bound allows for."""
    if normalizer["type"] == "Replace":
        pattern = normalizer["pattern"].get("String")
        return bool(pattern) and len(normalizer["content"]) >= len(pattern)
    return normalizer["type"] in ("NFC", "Prepend", "ByteLevel")


def _left_out(model: dict[str, Any], steps: list[dict[str, Any]]) -> str | None:
    """Return the characters that become no token because the vocabulary lacks their byte; None if other characters may
    be left out, or may become one token together with their neighbours.
    """
    vocab = model["vocab"]
    pieces = set(vocab) if isinstance(vocab, dict) else {piece for piece, _ in vocab}
    if model.get("byte_fallback"):
        known = {byte for byte in USED if f"<0x{byte:02X}>" in pieces}
        return "" if known == USED else None
    if model.get("type") != "BPE" or not any(step["type"] == "ByteLevel" for step in steps):
        return None
    known = {byte for character, byte in ALPHABET.items() if character in pieces}
    return "".join(map(chr, sorted(ASCII - known))) if known >= BEHIND else None
