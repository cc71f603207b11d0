"""A user watches 32 streams, chats, kills engine and scheduler by the page's buttons, and the answer goes on.

With `ORCA_SCREENSHOTS=FOLDER`, pictures of the steps are written there: those of docs/live.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from load.server import ROOT, OrcaServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect
pytestmark = [pytest.mark.chaos, pytest.mark.cluster, pytest.mark.timeout(400)]

Opens = Callable[..., "Page"]

STREAMS = 32
TOKENS = 600
STORY = "Tell me a long story about an orca that keeps a promise."
WIDE = {"width": 1360, "height": 820}
PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrcaServer]:
    with OrcaServer(tmp_path_factory.mktemp("demo"), "--demo", "--gateways", "2") as server:
        yield server
        server.end()


@pytest.fixture(scope="module")
def load(server: OrcaServer) -> Iterator[None]:
    """Locust's users, who begin again and again."""
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "load/locustfile.py"), "--host", server.url]
    flags = ["--headless", "--users", str(STREAMS), "--spawn-rate", "8", "--max-tokens", "120", "--only-summary"]
    users = subprocess.Popen([*command, *flags], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield
    users.terminate()
    users.wait(30)


def address(server: OrcaServer) -> str:
    """The page's address as `orca serve --demo` printed it, with the token of the buttons."""
    found = re.search(r"http://\S+/ui#demo=\S+", "".join(server.lines))
    assert found, server.lines
    return found.group()


def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("ORCA_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def watched(page: Page, seconds: float) -> None:
    """Wait until the page has drawn iterations for so long."""
    expect(page.locator("#nothing")).to_be_hidden(timeout=60_000)
    expect(page.locator("#figure-iterations")).not_to_have_text("–")
    page.wait_for_timeout(seconds * 1000)


@pytest.mark.usefixtures("load")
def test_an_answer_goes_on_when_its_engine_and_its_scheduler_are_killed(open_page: Opens, server: OrcaServer) -> None:
    page = open_page(address(server), viewport=WIDE, color_scheme="light")
    assert "demo" not in page.url
    watched(page, 12)
    picture(page, "iterations_light")
    page.get_by_role("tab", name="Chat").click()
    page.get_by_label("tokens at most").fill(str(TOKENS))
    page.get_by_label("Message").fill(STORY)
    page.get_by_label("Message").press("Enter")
    expect(page.locator(".assistant .text")).to_have_text(re.compile(r"(\S+\s+){20}"), timeout=60_000)
    for count, name in enumerate(("engine", "scheduler")):
        page.get_by_role("button", name=f"Kill {name}").click()
        expect(page.locator("#demo-told")).to_have_text(f"killed the {name}")
        expect(page.locator("#gaps li", has_text="was replaced")).to_have_count(count + 1, timeout=60_000)
        page.wait_for_timeout(4000)
        picture(page, f"{name}_killed")
    expect(page.locator("#send")).to_be_visible(timeout=120_000)
    answer = page.evaluate("JSON.parse(sessionStorage.getItem('orca.chat'))[1].answer")
    assert answer["error"] is None
    stored = httpx.get(f"{server.url}/v1/streams/{answer['lastId'].partition(':')[0]}", timeout=20).text
    chunks = [json.loads(line[6:]) for line in stored.splitlines() if line.startswith("data: {")]
    assert answer["text"] == "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])


@pytest.mark.usefixtures("load")
def test_pictures_in_the_dark_and_on_a_phone(open_page: Opens, server: OrcaServer) -> None:
    page = open_page(address(server), viewport=WIDE, color_scheme="dark")
    watched(page, 10)
    picture(page, "iterations_dark")
    page.get_by_role("tab", name="Replay").click()
    expect(page.locator("#totals-1")).to_contain_text("requests ended")
    picture(page, "replay_dark")
    page = open_page(server.url + "/ui", color_scheme="light", **PHONE)
    watched(page, 6)
    picture(page, "phone")
    expect(page.locator("#demo")).to_be_hidden()  # this tab knows no token
