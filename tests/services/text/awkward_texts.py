"""Texts that are difficult for decoders: sequences of chosen difficult pieces and of any Unicode text."""

from collections.abc import Sequence

from hypothesis import strategies as st

TRICKY = [
    " ",
    "  ",
    "\n",
    "\n\n",
    "12",
    "é",
    "東京",
    "🎉",
    "👩‍👩‍👧",
    "the cat",
    "<|end|",
    "ﷺ",
    "\u0301",
    "\x00",
    "\r\n",
    "Ġ",
    "¡",
]


def texts(pieces: Sequence[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(pieces) | st.text(max_size=5), max_size=8).map("".join)
