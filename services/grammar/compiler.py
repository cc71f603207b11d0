"""Grammars: compiles grammars for one vocabulary and caches them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

import llguidance

from services.errors import GrammarError
from services.grammar.matcher import Matcher
from services.text import TextTables

VERSION = llguidance.__version__
CACHED = 256  # compiled grammars

# The limits count work, not seconds, so that all processes refuse the same grammars. The engine allows more than the
# gateway, because a matcher that is made again after a crash has an empty cache of lexer states.
SLACK = 4


class Grammars:
    """Compiled grammars of one vocabulary. Can be used by several threads."""

    def __init__(self, tables: TextTables, vocab_size: int, eos_token_ids: Iterable[int], slack: int = SLACK) -> None:
        """`vocab_size` is the number of logits of the model. `slack`: 1 for the process that checks grammars, `SLACK`
        for the one that runs them."""
        spelled = tables.of(skip_special_tokens=False)
        eos = sorted(id for id in eos_token_ids if id < vocab_size)
        names = llguidance.TokenizerWrapper(_Vocabulary(spelled.token_bytes[:vocab_size], tables.special_ids, eos))
        self._tokenizer = llguidance.LLTokenizer(names, n_vocab=vocab_size, eos_token=eos)
        self._limits = llguidance.LLParserLimits(
            max_items_in_row=2_000 * slack,
            initial_lexer_fuel=1_000_000 * slack,
            step_lexer_fuel=200_000 * slack,
            step_max_items=50_000 * slack,
            max_lexer_states=50_000 * slack,
            max_grammar_size=200_000 * slack,
            verbose_errors=False,
        )
        self._lock = Lock()
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()

    def matcher(self, grammar: str) -> Matcher:
        """A matcher at the beginning of `grammar`, in llguidance's syntax: a Lark grammar, or JSON with a list of
        grammars. Raises GrammarError. The first call for a grammar takes 0.3 ms to seconds, and drops the GIL."""
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is not None:
                self._compiled.move_to_end(grammar)
        if compiled is None:
            compiled = llguidance.LLMatcher(self._tokenizer, grammar, limits=self._limits, log_level=0)
            if compiled.is_error():
                raise GrammarError(compiled.get_error())
            with self._lock:
                self._compiled[grammar] = compiled
                while len(self._compiled) > CACHED:
                    self._compiled.popitem(last=False)
        return Matcher(compiled.deep_copy())


class _Vocabulary:
    """The tokens as llguidance reads them."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_ids: Iterable[int], eos_token_ids: list[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = sorted(special_ids)
        self.eos_token_id = eos_token_ids[0] if eos_token_ids else 0

    def __call__(self, text: str | bytes) -> list[int]:
        """Only forced tokens, which nothing asks for, need a tokenizer."""
        return []
