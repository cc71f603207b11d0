"""Grammars of a vocabulary of letters: tokens 0 to 25 are a to z, 26 to 51 aa to zz, and so on."""

from __future__ import annotations

import functools

from services.engine.sampling.grammars import GrammarCompiler
from services.grammar import Grammars
from services.text import TextTables

EOS_ID = 5


@functools.cache
def letters(vocab: int) -> GrammarCompiler:
    """The compiler of a vocabulary whose token `EOS_ID` is EOS."""
    spelled = [bytes([97 + id % 26]) * (1 + id // 26) for id in range(vocab)]
    tables = TextTables(spelled, frozenset({EOS_ID}), TextTables(spelled, frozenset()))
    return GrammarCompiler(lambda: Grammars(tables, vocab, [EOS_ID]), vocab)
