"""The live page in a real browser: chat, iterations, recordings, keys, and what a keyboard and a screen reader need."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from relay import Relay
from stack import Stack

from gateway.live import routes

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

Opens = Callable[..., "Page"]

PAGE = Path(routes.__file__).parent / "page"
SAMPLE = Path(__file__).parents[1] / "services/live/data/live_sample.jsonl"
MOST_BYTES = 300 * 1024
WIDE = {"viewport": {"width": 1360, "height": 800}}
ASKED = "hello <b>the orca</b>" + " the world" * 30  # the answer repeats it
PAINTED = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
}"""


@contextlib.contextmanager
def slow(stack: Stack) -> Iterator[None]:
    """Within it, an answer lasts longer than a test takes to do something to it; afterwards, it ends at once."""
    stack.engine.pace = 0.1
    try:
        yield
    finally:
        stack.engine.pace = 0.0


def say(page: Page, text: str, tokens: int = 120) -> None:
    page.get_by_label("tokens at most").fill(str(tokens))
    page.get_by_label("temperature").fill("0")
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def undisturbed(url: str, text: str, tokens: int = 120) -> str:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0}
    return httpx.post(url + "/v1/chat/completions", json=body, timeout=20).json()["choices"][0]["message"]["content"]


def test_a_chat_goes_on_after_its_gateway_broke_and_the_page_was_reloaded(
    open_page: Opens, stack: Stack, relay: Relay
) -> None:
    page = open_page(relay.url + "/ui#chat", **WIDE)
    answer = page.locator(".assistant .text")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    with slow(stack):
        say(page, ASKED)
        expect(page.locator(".facts")).to_contain_text("asking again")
        page.unroute("**/v1/chat/completions")
        expect(answer).to_contain_text("hello")
        expect(page.locator(".facts")).not_to_contain_text("asking again")
        relay.cut()
        expect(page.locator(".resumed").first).to_contain_text("connection broke")
        expect(page.locator("#status")).to_have_text("live")
        page.reload()
        expect(page.locator(".resumed").nth(1)).to_contain_text("page reloaded")
    expect(page.locator("#send")).to_be_visible()
    assert answer.text_content() == undisturbed(relay.url, ASKED)
    assert page.locator("#turns b").count() == 0  # no text is taken for HTML
    expect(page.locator(".facts")).to_contain_text("tokens/s")


def test_the_iterations_of_a_chat_are_drawn_and_told_to_the_keyboard(open_page: Opens, stack: Stack) -> None:
    page = open_page(stack.url + "/ui", **WIDE)
    expect(page.locator("#nothing")).to_be_visible()
    expect(page.locator("#status")).to_have_text("live")
    page.get_by_role("tab", name="Iterations").press("ArrowRight")
    say(page, ASKED)
    expect(page.locator("#send")).to_be_visible()
    page.get_by_role("tab", name="Chat").press("ArrowLeft")
    expect(page.get_by_role("tab", name="Iterations")).to_be_focused()
    assert page.locator("#charts canvas").first.evaluate(PAINTED) > 2
    page.locator("#charts .overlay").press("ArrowLeft")
    expect(page.locator(".tip")).to_contain_text("increment: one token")
    expect(page.locator(".tip")).to_contain_text("chatcmpl-")
    expect(page.locator("#pause")).to_have_text("Go to now")
    expect(page.locator("#engines")).to_contain_text("ready")


def test_a_stopped_answer_is_cancelled_and_stays_as_it_is(open_page: Opens, stack: Stack) -> None:
    page = open_page(stack.url + "/ui#chat", **WIDE)
    with slow(stack):
        say(page, ASKED, 200)
        expect(page.locator(".assistant .text")).to_contain_text("hello")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".facts")).to_contain_text("stopped")
    text = page.locator(".assistant .text").text_content()
    last = page.evaluate("JSON.parse(sessionStorage.getItem('orca.chat'))[1].answer.lastId")
    stream = httpx.get(f"{stack.url}/v1/streams/{last.partition(':')[0]}", timeout=20)  # answered at its end
    assert "request_cancelled" in stream.text
    page.reload()
    expect(page.locator(".assistant .text")).to_have_text(text or "")
    expect(page.locator("#send")).to_be_visible()


def test_an_answer_is_stopped_when_the_server_knows_of_it(open_page: Opens, stack: Stack) -> None:
    page = open_page(stack.url + "/ui#chat", **WIDE)
    page.route("**/v1/streams/*", lambda route: route.abort())
    with slow(stack):
        say(page, ASKED, 200)
        expect(page.locator(".assistant .text")).to_contain_text("hello")
        page.get_by_role("button", name="Stop").click()
        with page.expect_event("requestfailed"):  # it is sent again and again
            pass
        expect(page.locator(".facts")).to_contain_text("stopping")
        expect(page.get_by_role("button", name="Stop")).to_be_disabled()
        page.unroute("**/v1/streams/*")
        expect(page.locator(".facts")).to_contain_text("stopped")
    expect(page.locator("#send")).to_be_visible()


def test_it_asks_for_a_key_until_the_server_knows_it(open_page: Opens, locked: Stack, key: str) -> None:
    page = open_page(locked.url + "/ui#chat", **WIDE)
    for given in ("no header can carry ключ", "key-of-nobody", f" {key} "):
        page.get_by_label("API key", exact=True).fill(given)
        page.get_by_role("button", name="Use this key").click()
        if given == "key-of-nobody":
            expect(page.locator("#key-wrong")).to_be_visible()
    expect(page.locator("#status")).to_have_text("live")
    say(page, "hello")
    expect(page.locator(".facts")).to_contain_text("3 tokens")


def test_a_recording_is_played(open_page: Opens, stack: Stack, tmp_path: Path) -> None:
    page = open_page(stack.url + "/ui#replay", **WIDE)
    expect(page.locator("#name-1")).to_have_text("Iteration-level scheduling")
    expect(page.locator("#totals-1")).to_contain_text("requests ended")  # the built-in pair
    page.locator("#file-0").set_input_files(SAMPLE)
    expect(page.locator("#name-0")).to_have_text(SAMPLE.name)
    page.locator("#clock").fill("100000")
    expect(page.locator("#totals-0")).to_contain_text("12 requests ended")
    page.locator("#clock").fill("0")
    expect(page.locator("#totals-0")).to_contain_text("0 requests ended")
    page.locator("#clock").fill(str(0.8 * float(page.locator("#clock").get_attribute("max") or 0)))
    page.locator("#speed").select_option("5")
    page.get_by_role("button", name="Play").click()
    expect(page.locator("#totals-0")).to_contain_text("12 requests ended")
    broken = tmp_path / "broken.jsonl"
    broken.write_text(SAMPLE.read_text() + "{")
    page.locator("#file-1").set_input_files(broken)
    expect(page.get_by_role("alert")).to_contain_text("broken.jsonl is no recording: line 81")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.chaos)])
def test_it_is_accessible_and_fits_a_phone(open_page: Opens, stack: Stack, axe: str, scheme: str) -> None:
    page = open_page(stack.url + "/ui#chat", viewport={"width": 360, "height": 740}, color_scheme=scheme)
    say(page, "hello")
    expect(page.locator(".facts")).to_contain_text("3 tokens")
    page.evaluate(axe)
    for view in ("chat", "iterations", "replay"):
        page.get_by_role("tab", name=view).click()
        violations = page.evaluate("axe.run()")["violations"]
        assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in violations] == [], view
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_it_is_small() -> None:
    assert sum(file.stat().st_size for file in PAGE.rglob("*")) < MOST_BYTES
