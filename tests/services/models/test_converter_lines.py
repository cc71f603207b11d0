"""What the process that converts models writes: whole lines, whatever thread writes them."""

from __future__ import annotations

import io
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.models.converter import say


class Handing(io.StringIO):
    """Lets another thread run at each write."""

    def __init__(self, meanwhile: ThreadPoolExecutor) -> None:
        super().__init__()
        self._meanwhile, self._begun = meanwhile, False

    def write(self, text: str) -> int:
        written = super().write(text)
        if not self._begun:
            self._begun = True
            self._meanwhile.submit(say, "count 0 2 hashing weights").result()
        return written


def test_lines_of_two_threads_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as other:
        monkeypatch.setattr(sys, "stdout", Handing(other))
        say("converting the tokenizer")
        written = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert written.splitlines() == ["converting the tokenizer", "count 0 2 hashing weights"]
