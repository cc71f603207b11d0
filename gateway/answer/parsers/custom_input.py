"""The input of a custom tool: the text in the arguments `{"input": TEXT}` of a call, as JSON in pieces."""

from __future__ import annotations

from gateway.answer.parsers.call_object import CallObject
from gateway.tools import INPUT


class CustomInput:
    """Reads the arguments of one call. What it returns depends on their text only, not on how it is cut."""

    def __init__(self) -> None:
        self._object = CallObject(argued=(INPUT,))
        self._opened = False

    def read(self, arguments: str) -> str:
        """The text in the next piece of the arguments. An escape is held back until it is complete."""
        for character in arguments:
            if not self._opened:
                self._opened = character == "{"
            elif not (self._object.ended or self._object.broken):
                self._object.read(character)
        return self._object.take_arguments()
