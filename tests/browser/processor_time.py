"""`python -m tests.browser.processor_time`: the processor time of headless Chromium that shows the live page.

Gateway, scheduler and pool are real, and run in one process; the engine takes 9 ms for an iteration of up to 32 rows.
The page is measured on an idle server, and while 32 streams run.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "gateway"))
import httpx
from playwright.sync_api import Browser, Page, sync_playwright
from stack import Server, Stack
from tiny_text import make_folder

from load.processes import descendants, processor_seconds, title_of
from load.report import machine, table
from services.settings.settings import Settings
from tests.browser.conftest import CHROMIUM

SECONDS = 10.0  # of each measurement
WARM = 3.0
STREAMS, TOKENS = 32, 400
PACE = 0.009
VIEW = {"width": 1360, "height": 820}

LOAD = """
import asyncio, sys
from load.over_http import run_over_http
from load.trace import Request
requests = [Request([*range(60, 90 + number)], int(sys.argv[3])) for number in range(int(sys.argv[2]))]
while True:
    asyncio.run(run_over_http(sys.argv[1], requests))
"""


@contextlib.contextmanager
def load(url: str) -> Iterator[None]:
    """Streams that begin again and again, from a process of their own."""
    process = subprocess.Popen([sys.executable, "-c", LOAD, url, str(STREAMS), str(TOKENS)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def chromium() -> list[int]:
    return [pid for pid in descendants(os.getpid()) if "chromium" in title_of(pid)]


def spent() -> float:
    """Milliseconds of processor time that Chromium takes in a second."""
    before = processor_seconds(chromium())
    began = time.monotonic()
    time.sleep(SECONDS)
    after = processor_seconds(chromium())
    seconds = time.monotonic() - began
    return 1000 * sum(value - before.get(pid, 0.0) for pid, value in after.items()) / seconds


def iterations(url: str) -> float:
    """How many iterations the server has run."""
    lines = httpx.get(url + "/metrics", timeout=20).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:iteration_tokens_total_count"))


def measured(page: Page, url: str, name: str) -> tuple[str, str, str]:
    page.wait_for_timeout(1000 * WARM)
    before, began = iterations(url), time.monotonic()
    milliseconds = spent()
    rate = (iterations(url) - before) / (time.monotonic() - began)
    return name, f"{rate:.0f}", f"{milliseconds:.0f}"


def rows(browser: Browser, url: str) -> Iterator[tuple[str, str, str]]:
    page = browser.new_page(viewport=VIEW)
    yield measured(page, url, "an empty page")
    page.goto(url + "/ui")
    yield measured(page, url, "iterations, nothing runs")
    with load(url):
        yield measured(page, url, "iterations")
        page.locator("#pause").click()
        yield measured(page, url, "iterations, paused")
        page.locator("#pause").click()
        page.get_by_role("tab", name="Chat").click()
        yield measured(page, url, "chat and iterations, without a chat")
        page.get_by_role("tab", name="Replay").click()
        yield measured(page, url, "replay, paused")
        page.emulate_media(reduced_motion="reduce")
        page.get_by_role("tab", name="Iterations").click()
        yield measured(page, url, "iterations, prefers-reduced-motion")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        stack = Stack(server.url, "processor-time", make_folder(Path(folder) / "tiny"), Settings())
        stack.figures = replace(stack.figures, num_blocks=4096)
        stack.batch_size = STREAMS
        with stack, sync_playwright() as driver:
            stack.engine.pace = PACE
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            print(f"{machine()}; {browser.browser_type.name} {browser.version}, without a GPU\n")
            head = ("view", "iterations/s", "processor time, ms/s")
            print(table(head, list(rows(browser, stack.url))))
            browser.close()


if __name__ == "__main__":
    main()
