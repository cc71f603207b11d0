"""The grammars of outputs: compiled in threads while prompts are computed, and one mask for each token.

llguidance is imported when the first request with a grammar comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from services.engine.batch.thinking import ThinkingLimit
from services.errors import GrammarError, OrcaError
from services.models.info import ModelInfo
from services.requests import NO_GRAMMAR, ThinkingBudget

if TYPE_CHECKING:
    from services.grammar import Grammars, Matcher

Words = npt.NDArray[np.int32]


def allows(mask: Words | None, token: int) -> bool:
    """Whether a mask, a bit for each token, allows `token`; None allows all."""
    return mask is None or bool(int(mask[token // 32]) >> token % 32 & 1)


THREADS = 4  # grammars that are compiled at the same time
# All requests wait for each other's masks. So the CPU time of a request's masks is bounded: a bucket of LARGEST seconds
# that leaks SECONDS_PER_TOKEN with each token. A mask of an ordinary schema takes less than 1 ms.
SECONDS_PER_TOKEN = 0.005
LARGEST = 0.25


class OutputGrammar:
    """How far the output of one request has come in its grammar."""

    __slots__ = ("_compiling", "_consumed", "_matcher", "_seconds", "_vocab_size", "error", "mask")

    def __init__(self, compiling: Future[Matcher], consumed: int, vocab_size: int) -> None:
        """`consumed`: up to which of the request's tokens the matcher has come when it is compiled."""
        self._compiling = compiling
        self._matcher: Matcher | None = None
        self._consumed = consumed
        self._seconds = 0.0  # in the bucket
        self._vocab_size = vocab_size
        self.mask: Words | None = None  # [ceil(vocab / 32)], a bit for each token that may follow; None: all may
        self.error: str | None = None  # why the request must fail

    def advance(self, token_ids: list[int]) -> None:
        """Set `mask` or `error` for the token after `token_ids` (prompt + output). Waits until the grammar is
        compiled."""
        self.mask = None
        try:
            if self._matcher is None:
                self._matcher = self._compiling.result()
            began = time.thread_time()
            new = self._consume(self._matcher, token_ids)
            if not self._matcher.ended:  # a token after the end was drawn ahead, and nobody reads it
                self.mask = np.frombuffer(self._matcher.mask(), np.int32, -(-self._vocab_size // 32))
            self._spend(time.thread_time() - began, max(1, new))
        except OrcaError as error:
            self.error = f"{NO_GRAMMAR}: {error}"
        except Exception as error:  # whatever it is, it is about this request alone
            self.error = f"{NO_GRAMMAR}: {error!r}"

    def _consume(self, matcher: Matcher, token_ids: list[int]) -> int:
        """Take what of prompt + output is new; return how many tokens that are."""
        new = token_ids[self._consumed :]
        matcher.consume(new)
        self._consumed = len(token_ids)
        return len(new)

    def forced(self, token_ids: list[int]) -> list[int]:
        """Return the tokens that follow `token_ids` (prompt + output) if the grammar leaves one text only. An error
        comes again from the next `advance`."""
        if self._matcher is None or self.error:
            return []
        try:
            self._consume(self._matcher, token_ids)
            return self._matcher.forced()
        except Exception:
            return []

    def masks_after(self, draft: list[int]) -> list[Words]:
        """The masks after each token of `draft`, which follows what `advance` took last, as far as it may follow. They
        cost the request nothing: it did not ask for the draft."""
        if self._matcher is None or self.mask is None:
            return []
        return [np.frombuffer(mask, np.int32, len(self.mask)) for mask in self._matcher.masks_after(draft)]

    def _spend(self, seconds: float, tokens: int) -> None:
        self._seconds = max(0.0, self._seconds + seconds - SECONDS_PER_TOKEN * tokens)
        if self._seconds > LARGEST:
            raise GrammarError(
                f"the tokens that may follow took {self._seconds:.2f} s of CPU time more than the "
                f"{SECONDS_PER_TOKEN * 1e3:g} ms that each token has; at most {LARGEST:g} s more are supported"
            )


@dataclass(frozen=True, slots=True)
class DraftMask:
    """The mask after a token of a draft, in place of an OutputGrammar."""

    mask: Words
    error: None = None


class GrammarCompiler:
    """Compiles the grammars of requests in threads, so that one that takes long does not delay the others."""

    def __init__(self, load: Callable[[], Grammars], vocab_size: int) -> None:
        """`load` is called when the first grammar comes. If it raises, that request fails."""
        self._load, self._vocab_size = load, vocab_size
        self._threads = ThreadPoolExecutor(THREADS, "grammars")
        self._loading = Lock()

    def begin(self, grammar: str, token_ids: list[int], num_prompt_tokens: int) -> OutputGrammar:
        """Start to compile, and to take the tokens that the output already has. `token_ids` are prompt + output."""
        compiling = self._threads.submit(self._compile, grammar, token_ids[num_prompt_tokens:])
        return OutputGrammar(compiling, len(token_ids), self._vocab_size)

    def begin_thinking(self, budget: ThinkingBudget, num_prompt_tokens: int) -> ThinkingLimit:
        """Start to load what tells the texts of tokens."""
        return ThinkingLimit(budget, self._threads.submit(lambda: self._loaded().tables), num_prompt_tokens)

    def _loaded(self) -> Grammars:
        with self._loading:
            return self._grammars

    def _compile(self, grammar: str, output_ids: list[int]) -> Matcher:
        matcher = self._loaded().matcher(grammar)
        matcher.consume(output_ids)
        return matcher

    @cached_property
    def _grammars(self) -> Grammars:
        return self._load()


def load_grammars(folder: Path, model: ModelInfo) -> Grammars:
    """The Grammars of the model in `folder`. Raises ModelError if its tokenizer cannot be used."""
    from services.grammar import Grammars
    from services.text.plain_encoder import plain_encoder
    from services.text.token_bytes import TextTables

    tables = TextTables.load(folder)
    return Grammars(tables, model.vocab_size, model.eos_token_ids, encode=plain_encoder(folder))
