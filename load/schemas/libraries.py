"""The libraries that are compared. xgrammar is imported only if it is used, because it is not a dependency."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from gateway.grammars.rules import json_rule
from load.schemas.suites import SEPARATORS
from load.schemas.vocabularies import Vocabulary
from services.errors import GrammarError
from services.grammar import Grammars, Matcher


class Refused(Exception):
    """The library refuses the schema, and says why."""


class Position(Protocol):
    """How far one output has come in its grammar."""

    def mask(self) -> object:
        """Compute which tokens may follow, unless nothing may. Raises Refused if the work exceeds a limit."""

    def accept(self, token: int) -> bool:
        """Take the next token; returns whether it may follow."""

    def complete(self) -> bool:
        """Whether the output may end here."""


class Library(Protocol):
    def compile(self, schema: dict[str, Any] | bool) -> Callable[[], Position]:
        """Compile without a cache. The result makes positions at the beginning. Raises Refused."""


class LLGuidance:
    """llguidance, as the server calls it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._grammars = Grammars(vocabulary.tables, vocabulary.size, [vocabulary.eos], slack=1)

    def compile(self, schema: dict[str, Any] | bool) -> Callable[[], Position]:
        grammar = json_rule(schema).grammar()
        try:
            self._grammars.matcher(grammar)
        except GrammarError as error:
            raise Refused(str(error)) from None
        return lambda: _LLGuidancePosition(self._grammars.matcher(grammar))


class _LLGuidancePosition:
    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher

    def mask(self) -> object:
        try:
            return None if self._matcher.ended else self._matcher.mask()
        except GrammarError as error:
            raise Refused(str(error)) from None

    def accept(self, token: int) -> bool:
        try:
            self._matcher.consume([token])
        except GrammarError:
            return False
        return True

    def complete(self) -> bool:
        return self._matcher.complete


class XGrammar:
    """xgrammar with the same separators, and additional properties unless the schema forbids them. One thread
    compiles."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        info = xgrammar.TokenizerInfo(
            vocabulary.ordinary(), vocab_size=vocabulary.size, stop_token_ids=[vocabulary.eos]
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._bits = xgrammar.allocate_token_bitmask(1, vocabulary.size)
        self._matcher = xgrammar.GrammarMatcher

    def compile(self, schema: dict[str, Any] | bool) -> Callable[[], Position]:
        try:
            compiled = self._compiler.compile_json_schema(
                json.dumps(schema), any_whitespace=False, separators=SEPARATORS, strict_mode=False
            )
        except Exception as error:  # it raises RuntimeError and others
            raise Refused(str(error)) from None
        return lambda: _XGrammarPosition(self._matcher(compiled), self._bits)


class _XGrammarPosition:
    def __init__(self, matcher: Any, bits: Any) -> None:
        self._matcher, self._bits = matcher, bits

    def mask(self) -> object:
        return None if self._matcher.is_terminated() else self._matcher.fill_next_token_bitmask(self._bits)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def complete(self) -> bool:
        return bool(self._matcher.is_completed())


LIBRARIES: dict[str, Callable[[Vocabulary], Library]] = {"llguidance": LLGuidance, "xgrammar": XGrammar}
