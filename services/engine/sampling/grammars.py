"""The grammars of outputs: compiled in a thread while prompts are computed, and one mask for each token.

llguidance is imported when the first request with a grammar comes.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from services.errors import OrcaError
from services.models.info import ModelInfo
from services.requests import NO_GRAMMAR

if TYPE_CHECKING:
    from services.grammar import Grammars, Matcher

Words = npt.NDArray[np.int32]


class OutputGrammar:
    """How far the output of one request has come in its grammar."""

    __slots__ = ("_compiling", "_consumed", "_matcher", "_vocab_size", "error", "mask")

    def __init__(self, compiling: Future[Matcher], consumed: int, vocab_size: int) -> None:
        """`consumed`: how many output tokens the matcher has taken when it is compiled."""
        self._compiling = compiling
        self._matcher: Matcher | None = None
        self._consumed = consumed
        self._vocab_size = vocab_size
        self.mask: Words | None = None  # [ceil(vocab / 32)], a bit for each token that may follow; None: all may
        self.error: str | None = None  # why the request must fail

    def advance(self, output_ids: list[int]) -> None:
        """Set `mask` or `error` for the token after `output_ids`."""
        self.mask = None
        try:
            if self._matcher is None:
                self._matcher = self._compiling.result()
            self._matcher.consume(output_ids[self._consumed :])
            self._consumed = len(output_ids)
            if not self._matcher.ended:  # a token after the end was drawn ahead, and nobody reads it
                self.mask = np.frombuffer(self._matcher.mask(), np.int32, -(-self._vocab_size // 32))
        except OrcaError as error:
            self.error = f"{NO_GRAMMAR}: {error}"
        except Exception as error:  # whatever it is, it is about this request alone
            self.error = f"{NO_GRAMMAR}: {error!r}"


class GrammarCompiler:
    """Compiles the grammars of requests, one after another, in a thread of its own."""

    def __init__(self, folder: Path, model: ModelInfo) -> None:
        """Reads the tokenizer in `folder` when the first grammar comes. Without a usable one every grammar fails."""
        self._folder, self._model = folder, model
        self._thread = ThreadPoolExecutor(1, "grammars")

    def begin(self, grammar: str, output_ids: list[int]) -> OutputGrammar:
        """Start to compile, and to take the tokens that the output already has."""
        compiling = self._thread.submit(self._compile, grammar, output_ids)
        return OutputGrammar(compiling, len(output_ids), self._model.vocab_size)

    def _compile(self, grammar: str, output_ids: list[int]) -> Matcher:
        matcher = self._grammars.matcher(grammar)
        matcher.consume(output_ids)
        return matcher

    @cached_property
    def _grammars(self) -> Grammars:
        from services.grammar import Grammars
        from services.text.plain_encoder import plain_encoder
        from services.text.token_bytes import TextTables

        tables, model = TextTables.load(self._folder), self._model
        return Grammars(tables, model.vocab_size, model.eos_token_ids, encode=plain_encoder(self._folder))
