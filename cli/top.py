"""`orca top`: what a running server computes, in a terminal; in a pipe, a line of figures each second.

The screen shows the figures of a server and, for each engine, slots over iterations.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import time
import tty
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from typing import Any

import httpx
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from cli.arguments import Parser
from cli.live_feed import Column, EngineView, LiveView, follow
from cli.server import add_server, connection

FRAME = 0.1  # seconds between two pictures; ssh carries them easily
QUIT = frozenset(b"qQ\x03\x04")  # q, Ctrl-C and Ctrl-D
COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta", "bright_yellow",
          "bright_green", "bright_blue", "bright_red")  # fmt: skip
MARKS = {"i": "█", "c": "▓", "r": "▒", "t": "━"}
PLAIN_MARKS = {"i": "#", "c": "=", "r": "%", "t": "-"}  # where the terminal is not UTF-8
MEANINGS = {"i": "initiation", "c": "chunk", "r": "recomputation", "t": "increment"}
FEWEST_ROWS = 3  # of an engine's strip


def run(arguments: list[str]) -> None:
    parser = Parser("orca top", "What a running server computes, iteration by iteration. q ends.")
    add_server(parser)
    options = parser.read(arguments)
    asyncio.run(_run(connection(options.url, options.api_key)))


async def _run(server: dict[str, Any]) -> None:
    view = LiveView()
    async with httpx.AsyncClient(**server) as client:
        if not sys.stdout.isatty():
            await _print_lines(client, view)
            return
        with _pressed_quit() as quit_pressed:
            reading = asyncio.create_task(_read(client, view))
            drawing = asyncio.create_task(_draw(view, server["base_url"]))
            await asyncio.wait({reading, drawing, quit_pressed}, return_when=asyncio.FIRST_COMPLETED)
            drawing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await drawing  # it restores the screen
            if reading.done():
                reading.result()
            reading.cancel()


async def _print_lines(client: httpx.AsyncClient, view: LiveView) -> None:
    async for name in follow(client, view):
        if name == "state":
            print(f"{time.strftime('%H:%M:%S')}  {summary(view)}", flush=True)
        elif not name:
            print(f"{time.strftime('%H:%M:%S')}  connecting again: {view.broken}", flush=True)


async def _read(client: httpx.AsyncClient, view: LiveView) -> None:
    async for _ in follow(client, view):
        pass


async def _draw(view: LiveView, url: str) -> None:
    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:  # each picture has the size that the terminal has then
            live.update(Screen(view, url), refresh=True)
            await asyncio.sleep(FRAME)


@contextlib.contextmanager
def _pressed_quit() -> Iterator[asyncio.Future[None]]:
    """A future that is done when a key of `QUIT` was pressed; never if the input is no terminal."""
    loop = asyncio.get_running_loop()
    pressed: asyncio.Future[None] = loop.create_future()
    if not sys.stdin.isatty():
        yield pressed
        return
    keyboard = sys.stdin.fileno()

    def read() -> None:
        if not QUIT.isdisjoint(os.read(keyboard, 64)) and not pressed.done():
            pressed.set_result(None)

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


# --- the screen ---


class Screen:
    """Draws `view`, in the size of the console at that moment."""

    def __init__(self, view: LiveView, url: str) -> None:
        self._view, self._url = view, url

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        marks = MARKS if console.encoding.startswith("utf") else PLAIN_MARKS
        lines = [*_head(self._view, self._url), Text("")]
        engines = _engines(self._view)
        # of each engine a line of figures, its strip and an empty line; then the legend
        rows = (height - len(lines) - 1) // max(1, len(engines)) - 2
        for name, about in engines.items():
            lines.append(_figures(_short(self._view, name), about))
            strip = self._view.engines.get(name)
            if strip and rows >= FEWEST_ROWS:
                lines += _strip(strip, width, rows, marks)
            lines.append(Text(""))
        lines.append(_legend(marks))
        for line in lines[:height]:
            line.truncate(width, overflow="crop")
            yield line


def summary(view: LiveView) -> str:
    """The figures in one line, for an output that is no terminal."""
    state = view.state
    engines = _engines(view)
    blocks = ", ".join(f"{_short(view, name)}: {_blocks(about)}" for name, about in engines.items())
    return "  ".join([*_counts(state), *_times(state), f"KV blocks of engine {blocks}" if blocks else "no engine"])


def _head(view: LiveView, url: str) -> list[Text]:
    state = view.state
    if not state:
        return [Text(f"orca top  {url}  waiting for the first figures")]
    first = Text.assemble(("orca top", "bold"), f"  {url}  {state.get('model', '')}  gateways {state.get('gateways')}")
    if view.broken:
        first.append(f"  connecting again: {view.broken}", "bold red")
    elif view.lost:
        first.append(f"  {view.lost} events lost", "yellow")
    models = [Text(f"{one['name']}  running {one['running']}  waiting {one['waiting']}") for one in _models(view)]
    return [first, Text("  ".join([*_counts(state), *_times(state)])), *models]


def _counts(state: Mapping[str, Any]) -> Iterable[str]:
    yield f"running {state.get('running', 0)}"
    yield f"waiting {state.get('waiting', 0)}"
    yield f"{state.get('tokens_per_second') or 0:.1f} tokens/s"


def _times(state: Mapping[str, Any]) -> Iterable[str]:
    for name, label in (("ttft_ms", "TTFT"), ("gap_ms", "between tokens")):
        times = state.get(name)
        yield f"{label} {times[0]:.0f} ms, p99 {times[1]:.0f} ms" if times else f"{label} -"


def _engines(view: LiveView) -> dict[str, Mapping[str, Any]]:
    """What the last state says of each engine, by name."""
    return {str(about["name"]): about for about in view.state.get("engines", ())}


def _models(view: LiveView) -> list[dict[str, Any]]:
    """The models of a server with several."""
    return list(view.state.get("models", ()))


def _short(view: LiveView, name: str) -> str:
    """The number of an engine, with its model if there are several, or its whole name where engines of several servers
    share the pool."""
    server, _, number = name.rpartition("/")
    if model := next((one["name"] for one in _models(view) if name in one["engines"]), ""):
        return f"{number} of {model}"
    return number if all(other.startswith(f"{server}/") for other in _engines(view)) else name


def _figures(name: str, about: Mapping[str, Any]) -> Text:
    health = ("ready", "green") if about.get("alive") and about.get("ready") else ("not ready", "bold red")
    line = Text.assemble((f"engine {name}  ", "bold"), health, f"  batch {about.get('batch', 0)}")
    line.append(f"  KV blocks {_blocks(about)}")
    spares = [label for key, label in (("spare", "engine"), ("spare_scheduler", "scheduler")) if about.get(key)]
    line.append(f"  spares: {', '.join(spares) or 'none'}", "" if len(spares) == 2 else "yellow")
    return line.append(f"  epoch {about.get('epoch') or '-'}", "dim")


def _blocks(about: Mapping[str, Any]) -> str:
    used, blocks = about.get("used", 0), about.get("blocks", 0)
    return f"{used:,.0f} of {blocks:,.0f} ({used / blocks:.0%})" if blocks else "-"


def _strip(engine: EngineView, width: int, rows: int, marks: Mapping[str, str]) -> list[Text]:
    """One line for each slot, the newest iteration on the right."""
    columns = list(islice(reversed(engine.columns), width))[::-1]
    used = 1 + max((row for column in columns if column for row in column), default=0)
    shown = used if used <= rows else rows - 1
    lines = [_row(columns, row, marks) for row in range(shown)]
    if used > shown:
        lines.append(Text(f"and {used - shown} slots more", "dim"))
    return lines


def _row(columns: list[Column | None], row: int, marks: Mapping[str, str]) -> Text:
    cells = (("|", "dim") if column is None else _cell(column, row, marks) for column in columns)
    line = Text(no_wrap=True)
    for style, run in groupby(cells, key=lambda cell: cell[1]):
        line.append("".join(mark for mark, _ in run), style)
    return line


def _cell(column: Column, row: int, marks: Mapping[str, str]) -> tuple[str, str]:
    """A character and its style."""
    if row not in column:
        return " ", ""
    n, kind = column[row]
    return marks.get(kind, "?"), COLORS[n % len(COLORS)]


def _legend(marks: Mapping[str, str]) -> Text:
    kinds = "  ".join(f"{marks[kind]} {meaning}" for kind, meaning in MEANINGS.items())
    return Text(f"q ends   {kinds}  | new owner   row: slot, column: iteration, colour: request", "dim")
