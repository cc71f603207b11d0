"""One choice of an answer: its tokens become text, held back where a stop string or a character is unfinished."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import ApiError, Kind
from services.messages import End, Logprobs, PromptLogprobs, TokenEvent
from services.requests import NO_TOKEN_LEFT, FinishReason
from services.text import Detokenizer, TextTables


@dataclass(frozen=True, slots=True)
class Piece:
    """What a choice has to say: text that is final, and all tokens since the last piece."""

    text: str
    tokens: list[int]
    logprobs: list[Logprobs]  # parallel to tokens, empty where not asked for
    finish_reason: str | None = None  # "stop" or "length" with the last piece
    first: bool = False  # nothing of the choice has been said before


class Choice:
    """Choice `index` of a group; `sent` counts the events, tokens and end, that have been said.

    It may begin in mid-stream: what `sent` counts at first is taken in silently, and pieces go on behind it.
    """

    __slots__ = (
        "_detokenizer",
        "_end",
        "_logprobs",
        "_silent",
        "_text",
        "_tokens",
        "added",
        "completion_tokens",
        "error",
        "index",
        "prompt_logprobs",
        "sent",
    )

    def __init__(
        self,
        index: int,
        tables: TextTables,
        stops: tuple[str, ...],
        stop_ids: frozenset[int],
        sent: int = 0,
        include_stop: bool = False,
        silent: bool = False,
    ) -> None:
        """`stop_ids`: the tokens that end this choice, EOS among them; `End.cut` takes their text off the answer.
        With `include_stop` it stays, and so does the text of a stop string. `silent`: its tokens are no part of the
        answer."""
        self.index = index
        self.sent = sent
        self.added = 0  # events taken
        self.completion_tokens = 0
        self.error: ApiError | None = None  # it ended without an answer
        self.prompt_logprobs: PromptLogprobs | None = None  # where they were asked for, with the first token
        self._silent = silent
        self._detokenizer = Detokenizer(tables, stops, stop_ids, include_stop)
        self._text = ""
        self._tokens: list[int] = []
        self._logprobs: list[Logprobs] = []
        self._end: End | None = None

    @property
    def ended(self) -> bool:
        return self._end is not None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed for this choice, once it has ended."""
        return self._end.cached if self._end else 0

    def add(self, event: TokenEvent) -> None:
        """Take the next event."""
        assert event.index == self.added, f"event {event.index} of {event.id} after {self.added} events"
        self.added += 1
        fresh = event.index >= self.sent
        text = ""
        if event.logprobs is not None and event.logprobs.prompt is not None:
            self.prompt_logprobs = event.logprobs.prompt
        if event.token is not None and not self._silent:
            self.completion_tokens += 1
            text = self._detokenizer.push((event.token,))
            if fresh:
                self._tokens.append(event.token)
                if event.logprobs is not None:
                    self._logprobs.append(event.logprobs)
        if event.end is not None:
            text += self._finish(event.end)
        if fresh:
            self._text += text

    def take(self, silent: bool = False) -> Piece | None:
        """What came since the last piece; None while there is no text, unless `silent` tokens are wanted too."""
        if self.added <= self.sent or not (self._text or self.ended or (silent and self._tokens)):
            return None
        reason = self._end.reason.value if self._end else None
        piece = Piece(self._text, self._tokens, self._logprobs, reason, first=not self.sent)
        self._text, self._tokens, self._logprobs = "", [], []
        self.sent = self.added
        return piece

    def _finish(self, end: End) -> str:
        self.error = failure(end)
        if self.error is not None:
            return ""
        self._end = end
        return self._detokenizer.finish(end.cut)


def failure(end: End) -> ApiError | None:
    """The error that a client gets for an end without an answer; None for an end with one."""
    if end.timed_out:
        return ApiError(
            Kind.QUEUE_TIMEOUT, "The request timed out: no engine had begun it by the end of its queue timeout."
        )
    if end.error == NO_TOKEN_LEFT:
        return ApiError(Kind.INVALID, f"The request left off: {end.error}.")
    if end.reason is FinishReason.ERROR:
        return ApiError(Kind.FAILED, f"The generation failed: {end.error or 'no reason given'}")
    if end.reason is FinishReason.CANCELLED:
        return ApiError(Kind.CANCELLED, "The request was cancelled.")
    return None
