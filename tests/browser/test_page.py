"""The live page in a real browser: chat, iterations, recordings, keys, and what a keyboard and a screen reader need."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from relay import Relay
from stack import Stack

from gateway.live import files

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

Opens = Callable[..., "Page"]

PAGE = Path(files.__file__).parent / "page"
SAMPLE = Path(__file__).parents[1] / "services/live/data/live_sample.jsonl"
MOST_BYTES = 300 * 1024
WIDE = {"viewport": {"width": 1360, "height": 800}}
SLOWLY = "SLOW <b>the orca</b>" + " the world" * 30  # an iteration takes 20 ms; the answer repeats the prompt
PAINTED = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
}"""


def say(page: Page, text: str, tokens: int = 120) -> None:
    page.get_by_label("tokens at most").fill(str(tokens))
    page.get_by_label("temperature").fill("0")
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def undisturbed(url: str, text: str, tokens: int = 120) -> str:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0}
    return httpx.post(url + "/v1/chat/completions", json=body, timeout=20).json()["choices"][0]["message"]["content"]


def test_a_chat_goes_on_after_its_gateway_broke_and_the_page_was_reloaded(open_page: Opens, relay: Relay) -> None:
    page = open_page(relay.url + "/ui#chat", **WIDE)
    say(page, SLOWLY)
    answer = page.locator(".assistant .text")
    expect(answer).to_contain_text("SLOW")
    relay.cut()
    expect(page.locator(".resumed").first).to_contain_text("connection broke")
    expect(page.locator("#status")).to_have_text("live")
    page.reload()
    expect(page.locator(".resumed").nth(1)).to_contain_text("page reloaded")
    expect(page.locator("#send")).to_be_visible()
    assert answer.text_content() == undisturbed(relay.url, SLOWLY)
    assert page.locator("#turns b").count() == 0  # no text is taken for HTML
    expect(page.locator(".facts")).to_contain_text("tokens/s")


def test_the_iterations_of_a_chat_are_drawn_and_told_to_the_keyboard(open_page: Opens, stack: Stack) -> None:
    page = open_page(stack.url + "/ui", **WIDE)
    expect(page.locator("#nothing")).to_be_visible()
    expect(page.locator("#status")).to_have_text("live")
    page.get_by_role("tab", name="Iterations").press("ArrowRight")
    say(page, SLOWLY)
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
    say(page, SLOWLY, 200)
    expect(page.locator(".assistant .text")).to_contain_text("SLOW")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".facts")).to_contain_text("stopped")
    text = page.locator(".assistant .text").text_content()
    last = page.evaluate("JSON.parse(sessionStorage.getItem('orca.chat'))[1].answer.lastId")
    stream = httpx.get(f"{stack.url}/v1/streams/{last.partition(':')[0]}", timeout=20)  # answered at its end
    assert "request_cancelled" in stream.text
    page.reload()
    expect(page.locator(".assistant .text")).to_have_text(text or "")
    expect(page.locator("#send")).to_be_visible()


def test_it_asks_for_a_key_until_the_server_knows_it(open_page: Opens, locked: Stack, key: str) -> None:
    page = open_page(locked.url + "/ui#chat", **WIDE)
    for given in ("key-of-nobody", key):
        page.get_by_label("API key", exact=True).fill(given)
        page.get_by_role("button", name="Use this key").click()
        if given != key:
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
    page.locator("#speed").select_option("5")
    page.get_by_role("button", name="Play").click()
    expect(page.locator("#totals-0")).to_contain_text("12 requests ended")
    broken = tmp_path / "broken.jsonl"
    broken.write_text(SAMPLE.read_text() + "{")
    page.locator("#file-1").set_input_files(broken)
    expect(page.get_by_role("alert")).to_contain_text("broken.jsonl is no recording: line 81")


@pytest.mark.parametrize("scheme", ["light", "dark"])
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


ROWS = """async ([url, batches, times]) => {
    const { Timeline, WORDS } = await import(url);
    const timeline = new Timeline();
    for (let epoch = 0; epoch < times; epoch++) {
        for (const batch of batches) timeline.add({ ...batch, epoch: `${epoch}:x` });
    }
    const rows = timeline.items.filter(({ gap }) => !gap).map(({ cells }) =>
        [...cells].filter((_, i) => i % WORDS === 1).map((word) => word >>> 20));
    return {
        kept: timeline.items.length,
        clashes: rows.filter((row) => new Set(row).size < row.length).length,
        highest: Math.max(...rows.flat()),
    };
}"""


def test_each_request_of_an_iteration_has_a_row_of_its_own(open_page: Opens, stack: Stack) -> None:
    """In a recorded sample, with lost batches, and with new owners for longer than the page keeps."""
    page = open_page(stack.url + "/ui")
    sample = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    batches = [event["data"] for event in sample if event["event"] == "iterations"]
    length = sum(len(batch["iterations"]) for batch in batches)
    widest = max(len(iteration["requests"]) for batch in batches for iteration in batch["iterations"])
    for events, times in ((batches, 1), (batches[::2], 1), (batches, 35_000 // length)):
        found: dict[str, int] = page.evaluate(ROWS, [stack.url + "/ui/timeline.js", events, times])
        assert found["clashes"] == 0
        assert found["kept"] <= 30_000
        if events is batches:
            assert found["highest"] == widest - 1, "a row that was free was not taken"


def test_a_free_row_is_taken_by_the_next_request(open_page: Opens, stack: Stack) -> None:
    """Also if the end of the one before is listed in the iteration that the next one joins."""
    page = open_page(stack.url + "/ui")
    one = {"at": 0, "ms": 1, "blocks": 1, "ended": [], "preempted": []}
    steps = [
        one | {"step": 1, "requests": [[1, 3, "i"], [2, 3, "i"]]},
        one | {"step": 2, "requests": [[3, 3, "i"], [4, 3, "i"]], "ended": [[1, "stop"]], "preempted": [2]},
        one | {"step": 3, "requests": [[2, 3, "r"], [3, 1, "t"]], "preempted": [2, 4]},
    ]
    batches = [{"epoch": "1:a", "iterations": steps, "requests": {}}]
    found = page.evaluate(ROWS, [stack.url + "/ui/timeline.js", batches, 1])
    assert (found["clashes"], found["highest"]) == (0, 1)


GAPS = """async ([url, steps]) => {
    const { Timeline } = await import(url);
    const { gapText } = await import(url.replace("timeline", "cells"));
    const timeline = new Timeline();
    for (const [epoch, step, at, ended, away] of steps) {
        if (away) timeline.interrupt();
        const iteration = { step, at, ms: 10, requests: ended ? [] : [[1, 1, "t"]], blocks: 1, preempted: [] };
        timeline.add({ epoch, iterations: [{ ...iteration, ended: ended ? [[1, "stop"]] : [] }], requests: {} });
    }
    return timeline.items.filter(({ gap }) => gap).map((item) => [gapText(item), item.busy]);
}"""


def test_a_gap_says_why_no_iteration_was_drawn(open_page: Opens, stack: Stack) -> None:
    page = open_page(stack.url + "/ui")
    steps = [
        ("1:a", 1, 0, False, False),
        ("1:a", 2, 10, False, False),
        ("1:a", 3, 2020, False, False),  # the request waited
        ("2:b", 1, 3030, False, False),  # a scheduler died
        ("2:b", 7, 4040, False, False),  # batches were lost
        ("2:b", 8, 4050, True, False),
        ("2:b", 9, 9060, False, False),  # the request had ended
        ("2:b", 10, 10070, False, True),  # the tab was hidden
    ]
    found = page.evaluate(GAPS, [stack.url + "/ui/timeline.js", steps])
    assert found == [
        ["paused 2.0 s", True],
        ["replaced · 1.0 s", True],
        ["not seen 1.0 s", False],
        ["idle 5.0 s", False],
        ["not seen 1.0 s", False],
    ]
