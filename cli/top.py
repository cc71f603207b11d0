"""`orca top`: what a running server computes, in a terminal; in a pipe, a line of figures each second."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Any

import httpx
from rich.console import Console
from rich.live import Live

from cli.arguments import Parser
from cli.live_feed import LiveView, follow
from cli.server import add_server, connection
from cli.top_screen import Screen, summary

FRAME = 0.1  # seconds between two pictures; ssh carries them easily
QUIT = frozenset(b"qQ\x03\x04")  # q, Ctrl-C and Ctrl-D


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
