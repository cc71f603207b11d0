"""Grammars: compiles grammars for one vocabulary and caches them."""

from __future__ import annotations

import re
import time
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
# Bounds of a grammar's text: compiling takes the square of the number of terminals that are built from each other, or
# of the pieces of an expression that may be empty.
LONGEST = 1 << 18  # bytes
MOST_LINES = 1_000
MOST_OPTIONAL = 5_000  # pieces of expressions that may be empty
_OPTIONAL = re.compile(r"[?*]|\{0|\{,|\(\||\|\)")
CACHED = 32  # compiled grammars; one takes up to some 20 MB, or 50 MB if its text is long
CACHED_LENGTH = 1 << 20  # characters of their texts

# These bound compiling and masks. They count work, not seconds, so that all processes refuse the same grammars. A row
# of the parser has all ways to read the text so far. Adding to it searches it, so its time is the square of its items.
MOST_ITEMS = 2_000  # of a row
MOST_STEP_ITEMS = 20_000  # of all rows that a mask tries
MOST_SYMBOLS = 50_000  # of the rules of a grammar
# Work of the lexer. The engine allows more than the gateway, because a matcher that is made again after a crash has an
# empty cache of lexer states.
FUEL = 500_000  # to compile
STEP_FUEL = 50_000  # for a mask
MOST_STATES = 10_000
SLACK = 4

MOST_SECONDS = 1.0  # of CPU time to check a grammar; the engine, which compiles what was checked, has no such bound


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
        self.tables = tables
        self._eos = frozenset(id for id in eos_token_ids if 0 <= id < vocab_size)
        self._tokenizer = Vocabulary(tables, vocab_size, sorted(self._eos), encode).tokenizer() if self._eos else None
        self._limits = llguidance.LLParserLimits(
            max_items_in_row=MOST_ITEMS,
            initial_lexer_fuel=FUEL * slack,
            step_lexer_fuel=STEP_FUEL * slack,
            step_max_items=MOST_STEP_ITEMS,
            max_lexer_states=MOST_STATES * slack,
            max_grammar_size=MOST_SYMBOLS,
            verbose_errors=False,
        )
        self._lock = Lock()
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()

    def check(self, grammar: str) -> None:
        """Raises GrammarError if `grammar` does not compile, or takes more CPU time than a check may. Nothing is kept.
        Takes 2 ms to some seconds, and drops the GIL."""
        _check_size(grammar)
        _, seconds = deep_stack(lambda: self._compile(grammar))
        if seconds > MOST_SECONDS:
            raise GrammarError(f"the grammar took {seconds:.1f} s to compile; at most {MOST_SECONDS:g} s are supported")

    def matcher(self, grammar: str) -> Matcher:
        """A matcher at the beginning of `grammar`, in llguidance's syntax: a Lark grammar, or JSON with a list of
        grammars. Raises GrammarError, also if no text has this grammar. The first call for a grammar takes 2 ms to
        some seconds, and drops the GIL."""
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is not None:
                self._compiled.move_to_end(grammar)
        if compiled is None:
            _check_size(grammar)
            compiled, _ = deep_stack(lambda: self._compile(grammar))
            with self._lock:
                self._compiled[grammar] = compiled
                while len(self._compiled) > CACHED or sum(map(len, self._compiled)) > CACHED_LENGTH:
                    self._compiled.popitem(last=False)
        return Matcher(compiled.deep_copy(), self._eos)

    def _compile(self, grammar: str) -> tuple[llguidance.LLMatcher, float]:
        """The compiled grammar and the seconds of CPU time it took. The first mask is computed too, so that a grammar
        without any text is refused, and copies have its cache."""
        if self._tokenizer is None:
            raise GrammarError("the model has no EOS token, so an output with a grammar could not end")
        began = time.thread_time()
        compiled = llguidance.LLMatcher(self._tokenizer, grammar, limits=self._limits, log_level=0)
        if not compiled.is_error():
            compiled.compute_bitmask()
        if compiled.is_error():
            raise GrammarError(readable(compiled.get_error()))
        return compiled, time.thread_time() - began


def _check_size(grammar: str) -> None:
    if (size := len(grammar.encode(errors="replace"))) > LONGEST:
        raise GrammarError(f"the grammar has {size:,} bytes; at most {LONGEST:,} are supported")
    lines = grammar.count("\n") + grammar.count("\\n")  # the second in JSON
    if lines > MOST_LINES:
        raise GrammarError(f"the grammar has {lines:,} lines; at most {MOST_LINES:,} are supported")
    if (optional := len(_OPTIONAL.findall(grammar))) > MOST_OPTIONAL:
        raise GrammarError(f"the grammar has {optional:,} optional pieces; at most {MOST_OPTIONAL:,} are supported")
