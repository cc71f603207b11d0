"""The limit of the reasoning of an output: the tokens that must follow once its budget is used up."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from services.requests import ThinkingBudget

if TYPE_CHECKING:
    from services.text.token_bytes import TextTables


class ThinkingLimit:
    """How far the output of one request has come in its reasoning: a function of the budget and the output alone.

    The marks are found in the text, as those who read the answer find them: a model may write a mark with other tokens
    than the tokenizer. A copy changes by itself.
    """

    __slots__ = (
        "_budget",
        "_closed",
        "_closing",
        "_consumed",
        "_inside",
        "_left",
        "_loading",
        "_over",
        "_text",
        "error",
    )

    def __init__(self, budget: ThinkingBudget, loading: Future[TextTables], num_prompt_tokens: int) -> None:
        self._budget = budget
        self._loading = loading
        self._consumed = num_prompt_tokens  # tokens of the request that are taken
        self._left = budget.tokens  # negative: tokens that a grammar needed before it allowed the end
        self._inside = budget.opened
        self._closing = budget.closing
        self._closed = 0  # tokens of the closing that the output ends with
        self._over = False
        self._text = b""  # of the output, as far as a mark may be in it
        self.error: str | None = None  # why the request must fail

    def forced(self, token_ids: list[int]) -> int | None:
        """Return the token that must follow `token_ids` (prompt + output); None if the budget leaves it open."""
        if self._over:
            return None
        try:
            tables = self._loading.result().of(skip_special_tokens=False)
        except Exception as error:  # whatever it is, it is about this request alone
            self.error = f"the thinking budget cannot be applied: {error}"
            return None
        for token in token_ids[self._consumed :]:
            if not self._over:
                self._take(token, tables.bytes_of(token))
        self._consumed = len(token_ids)
        return self._closing[self._closed] if self._inside and self._left <= 0 else None

    def _take(self, token: int, data: bytes) -> None:
        self._text += data
        if not self._inside:
            self._begin()
            return
        # a grammar may forbid the closing at first, in the middle of a character
        closes = self._left <= 0 and token == self._closing[self._closed]
        self._left -= 1
        self._closed = self._closed + 1 if closes else 0
        if self._closed == len(self._closing) or not closes:
            self._find_end()

    def _begin(self) -> None:
        """Find the beginning of the reasoning in the text before it."""
        begin = self._budget.begin.encode()
        if self._budget.again:
            _, found, rest = self._text.partition(begin)
        else:
            text = self._text.lstrip()
            self._over = not text.startswith(begin[: len(text)])
            found, rest = (begin, text[len(begin) :]) if text.startswith(begin) else (b"", b"")
        if found:
            self._inside, self._text = True, rest
            self._find_end()
        elif self._budget.again:
            self._text = self._text[-len(begin) :]

    def _find_end(self) -> None:
        """Find the end of the reasoning in the text since its beginning, or the last part of that."""
        end = self._budget.end.encode()
        _, found, rest = self._text.partition(end)
        if not found:
            self._text = self._text[-len(end) :]
            return
        if self._left < 0:
            self._closing = self._budget.again
        self._inside, self._closed, self._text = False, 0, rest
        self._over = not self._budget.again
