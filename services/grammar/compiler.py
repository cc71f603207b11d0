"""Grammars: compiles grammars for one vocabulary and caches them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

import llguidance

from services.errors import GrammarError
from services.grammar.deep_stack import deep_stack
from services.grammar.matcher import Matcher, readable
from services.grammar.vocabulary import Encode, Vocabulary
from services.text.token_bytes import TextTables

VERSION = llguidance.__version__
LONGEST = 1 << 18  # bytes of a grammar's text; compiling takes up to the square of the number of its rules
MOST_RULES = 1_000  # lines of Lark grammars that may define a rule
CACHED = 256  # compiled grammars
CACHED_BYTES = 1 << 22  # of their texts

# The limits count work, not seconds, so that all processes refuse the same grammars. The engine allows more than the
# gateway, because a matcher that is made again after a crash has an empty cache of lexer states.
SLACK = 4


class Grammars:
    """Compiled grammars of one vocabulary. Can be used by several threads."""

    def __init__(
        self,
        tables: TextTables,
        vocab_size: int,
        eos_token_ids: Iterable[int],
        slack: int = SLACK,
        encode: Encode | None = None,
    ) -> None:
        """`vocab_size` is the number of logits of the model. `slack`: 1 for the process that checks grammars, `SLACK`
        for the one that runs them. `encode` is the model's tokenizer; where a grammar leaves one text only, the mask
        leaves its tokens. Without it, they are the longest ones."""
        self._eos = frozenset(id for id in eos_token_ids if 0 <= id < vocab_size)
        self._tokenizer = Vocabulary(tables, vocab_size, sorted(self._eos), encode).tokenizer() if self._eos else None
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
        self._bytes = 0  # of the texts in the cache

    def matcher(self, grammar: str) -> Matcher:
        """A matcher at the beginning of `grammar`, in llguidance's syntax: a Lark grammar, or JSON with a list of
        grammars. Raises GrammarError, also if no text has this grammar. The first call for a grammar takes 0.3 ms to
        seconds, and drops the GIL."""
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is not None:
                self._compiled.move_to_end(grammar)
        if compiled is None:
            _check_size(grammar)
            compiled = deep_stack(lambda: self._compile(grammar))
            self._keep(grammar, compiled)
        return Matcher(compiled.deep_copy(), self._eos)

    def _compile(self, grammar: str) -> llguidance.LLMatcher:
        """The first mask is computed too, so that a grammar without any text is refused, and copies have its cache."""
        if self._tokenizer is None:
            raise GrammarError("the model has no EOS token, so an output with a grammar could not end")
        compiled = llguidance.LLMatcher(self._tokenizer, grammar, limits=self._limits, log_level=0)
        if not compiled.is_error():
            compiled.compute_bitmask()
        if compiled.is_error():
            raise GrammarError(readable(compiled.get_error()))
        return compiled

    def _keep(self, grammar: str, compiled: llguidance.LLMatcher) -> None:
        with self._lock:
            if grammar not in self._compiled:
                self._bytes += len(grammar)
            self._compiled[grammar] = compiled
            while len(self._compiled) > CACHED or self._bytes > CACHED_BYTES:
                oldest, _ = self._compiled.popitem(last=False)
                self._bytes -= len(oldest)


def _check_size(grammar: str) -> None:
    if (size := len(grammar.encode(errors="replace"))) > LONGEST:
        raise GrammarError(f"the grammar has {size:,} bytes; at most {LONGEST:,} are supported")
    if (rules := grammar.count("\n") + grammar.count("\\n")) > MOST_RULES:
        raise GrammarError(f"the grammar has {rules:,} lines; at most {MOST_RULES:,} are supported")
