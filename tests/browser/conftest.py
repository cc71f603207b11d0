"""A headless Chromium of this machine, driven by Playwright, and gateways on a real pool for it."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "gateway"))
from relay import Relay
from stack import Server, Stack
from tiny_text import make_folder

from services.files import user_cache
from services.settings.settings import Settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
AXE = "4.11.0"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Playwright runs an event loop in this thread while it is open, and tests of other files need their own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if not CHROMIUM:
        pytest.skip("no Chromium on the PATH")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which npm downloads once into the cache of this user."""
    folder = user_cache() / f"axe-core-{AXE}"
    source = folder / "node_modules/axe-core/axe.min.js"
    if not source.exists():
        if not shutil.which("npm"):
            pytest.skip("npm is not installed, which downloads axe-core")
        command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", f"axe-core@{AXE}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"npm could not download axe-core: {done.stderr[-300:]}")
    return source.read_text()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def pool_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(tmp_path_factory.mktemp("pool")) as server:
        yield server.url


@pytest.fixture(scope="session")
def stack(pool_url: str, tiny_folder: Path) -> Iterator[Stack]:
    with Stack(pool_url, f"page-{secrets.token_hex(4)}", tiny_folder, Settings()) as stack:
        yield stack


@pytest.fixture(scope="session")
def relay(stack: Stack) -> Iterator[Relay]:
    """Two gateways on one pool behind one address."""
    with stack.second() as other:
        relay = Relay([stack.url, other.url])
        yield relay
        relay.close()


@pytest.fixture(scope="session")
def key() -> str:
    return "key-of-alice"


@pytest.fixture(scope="session")
def locked(pool_url: str, tiny_folder: Path, key: str) -> Iterator[Stack]:
    """A server that asks for a key."""
    with Stack(pool_url, f"locked-{secrets.token_hex(4)}", tiny_folder, Settings(api_keys={key: "alice"})) as stack:
        yield stack


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open pages, each in a profile of its own. After the test no page may have logged an error, except that a
    connection broke or a key was asked for."""
    contexts, errors = [], []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            errors.append(message.text)

    def open_(url: str, **options: object) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", note)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert errors == []
