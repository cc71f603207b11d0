"""Grammars of a vocabulary of letters: tokens 0 to 25 are a to z, 26 to 51 aa to zz, and so on."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from services.engine.batch.grammars import GrammarCompiler
from services.text import TextTables

if TYPE_CHECKING:
    from services.grammar import Grammars

EOS_ID = 5


@functools.cache
def letters(vocab: int) -> GrammarCompiler:
    """The compiler of a vocabulary whose token `EOS_ID` is EOS. It needs llguidance once it is used."""

    def load() -> Grammars:
        from services.grammar import Grammars

        return Grammars(tables, vocab, [EOS_ID])

    spelled = [bytes([97 + id % 26]) * (1 + id // 26) for id in range(vocab)]
    tables = TextTables(spelled, frozenset({EOS_ID}), TextTables(spelled, frozenset()))
    return GrammarCompiler(load, vocab)
