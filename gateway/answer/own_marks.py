"""Which marks in an assistant's text of the history are marks: those that the server's own parser reads as such.

Clients send back answers as another server wrote them, with the reasoning or calls within the text, and chat templates
read them there. Elsewhere a text that is spelled like a mark is text.
"""

from __future__ import annotations

import re

from gateway.answer.parsers.formats import REASONING_FORMATS
from gateway.answer.parsers.registry import is_harmony, make_parser, marks_of
from gateway.answer.parts import TEXT, Part

MOST = 1 << 22  # characters that are read at most, over all marks; in a text with more, no mark is one
SIGN = "\ue000"  # a character without a meaning


def own_marks(text: str, tool_parser: str, reasoning_parser: str, opens: bool) -> list[range]:
    """The places of the marks. `opens`: the chat template begins the reasoning, so that a text begins inside it if it
    does not begin it itself. Templates write no text on Harmony's channels."""
    marks = sorted(marks_of(tool_parser, reasoning_parser), key=len, reverse=True)
    if not marks or is_harmony(tool_parser, reasoning_parser):
        return []
    places = [range(*found.span()) for found in re.finditer("|".join(map(re.escape, marks)), text)]
    if len(places) * len(text) > MOST:
        return []
    if form := REASONING_FORMATS.get(reasoning_parser):
        opens = opens and form.begin not in text.partition(form.end)[0]

    def read(written: str) -> list[Part]:
        parser = make_parser(tool_parser, reasoning_parser, opens, parallel=True)
        assert parser, "there are marks"
        parts = parser.push(written) + parser.finish()
        return [part._replace(text=part.text.replace(SIGN, "")) for part in parts]

    whole = read(text)
    if all(part.kind is TEXT for part in whole):
        return []
    kept = []
    for place in reversed(places):  # of marks that could each be the one that counts, the first one is
        without = f"{text[: place.start + 1]}{SIGN}{text[place.start + 1 :]}"
        if read(without) == whole:
            text = without
        else:
            kept.append(place)
    return kept[::-1]
