"""Steps: a bar of the steps of a start with the time left, redrawn while they last."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import Self

from services.progress import INTERVAL, Bar, Say

REDRAW = 0.5  # seconds between drawings on a terminal


class Steps:
    """The step under way is named beside the bar. Where stderr is no terminal, `say` gets a line every INTERVAL."""

    def __init__(self, count: int, first: str, say: Say) -> None:
        self._bar = Bar(desc=first, total=count, unit="steps", say=say, smoothing=0)  # steps are few: their average

    async def __aenter__(self) -> Self:
        self._redrawing = asyncio.create_task(self._redraw())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def next(self, name: str) -> None:
        """A step is done; the next one is called `name`."""
        self._bar.set_description(name, refresh=False)
        self._bar.update()

    def end(self) -> None:
        """Remove the bar."""
        self._redrawing.cancel()
        self._bar.close()

    async def _redraw(self) -> None:
        while True:
            await asyncio.sleep(REDRAW if sys.stderr.isatty() else INTERVAL)
            self._bar.refresh()
