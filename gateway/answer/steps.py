"""Steps: the changes of a stream with one event per part: an item is opened, gains text, or is closed.

The events of the Responses API and of Anthropic's are made of steps. Their numbers are functions of token indices. They
do not depend on how tokens are grouped, on the gateway or on where a stream was resumed. O is the number of the API's
last opening event, n a number of token events (including the end).

- Without a parser the answer is one text, which the opening events open. A piece of it has the number O + n, n up to
  the piece. The closing events follow O + n, n up to the end.
- With a parser a part has the number O + `PLACES` * `Part.number`. The `PLACES` - 1 numbers after that of an item's
  last part are for the events that close it and open the next item; those that open the first item follow O. The last
  events of the stream follow O + `PLACES` * `STRIDE` * (n + 1), n up to the end.

Numbers increase, with gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from gateway.answer.parts import STRIDE
from gateway.answer.transcript import Item, Transcript
from services.messages import TokenEvent

PLACES = 8  # numbers of events per number of a part
CLOSE_PLACE, OPEN_PLACE = 1, 4  # of the first event that closes an item, and of the first one that opens the next


class Move(Enum):
    OPEN = "open"
    ADD = "add"
    CLOSE = "close"


OPEN, ADD, CLOSE = Move  # reading a member of an enum is slow, and each token of each stream takes this path


# The move; its item; the number of its first event, which up to two more follow; and what the item gains, perhaps
# nothing: text and log probabilities. A plain tuple is made fastest: each token of each stream makes one.
Step = tuple[Move, Item, int, str, Sequence[dict[str, Any]]]


class Steps:
    """The steps of a transcript. `opening`: the number of the last opening event. `after`: the number of the last event
    that the client has received; the tokens up to it are taken one by one, so that the next step starts after it."""

    def __init__(self, transcript: Transcript, opening: int, after: int = -1) -> None:
        self._transcript = transcript
        self._opening = opening
        self._after = after
        self._places = PLACES if transcript.parsed else 1  # numbers of events per number of an addition
        self._scale = PLACES * STRIDE if transcript.parsed else 1  # and per token event
        self._open: Item | None = None if transcript.parsed else transcript.items[0]
        self._last = opening  # the number of the last addition

    @property
    def end(self) -> int:
        """The last events of the stream have the numbers after this one."""
        return self._opening + last_number(self._transcript.parsed, self._transcript.num_events)

    def take(self, events: Iterable[TokenEvent]) -> list[Step]:
        """The steps of the next events. The last item remains open."""
        steps: list[Step] = []
        for event in events:
            self._transcript.add(event)
            if self._opening + self._scale * self._transcript.num_events <= self._after:
                self._add(steps, allow_empty=True)
        self._add(steps)
        return steps

    def close(self) -> list[Step]:
        """The step that closes the last item, if any."""
        if self._open is None:
            return []
        last = self._last if self._transcript.parsed else self.end
        return [(CLOSE, self._open, last + CLOSE_PLACE, "", ())]

    def _add(self, steps: list[Step], allow_empty: bool = False) -> None:
        for item, text, number, logprobs in self._transcript.take(allow_empty):
            if item is not self._open:
                if self._open is not None:
                    steps.append((CLOSE, self._open, self._last + CLOSE_PLACE, "", ()))
                steps.append((OPEN, item, self._last + OPEN_PLACE, "", ()))
                self._open = item
            self._last = self._opening + self._places * number
            steps.append((ADD, item, self._last, text, logprobs))


def last_number(parsed: bool, num_events: int) -> int:
    """The highest number of an event of an answer with `num_events` token events, relative to the last opening event,
    except for the last events of the stream. It limits the numbers that a client may send."""
    return PLACES * STRIDE * (num_events + 1) if parsed else num_events
