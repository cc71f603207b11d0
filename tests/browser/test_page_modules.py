"""The modules of the live page, called in a real browser: timelines, recordings of all kinds, and the figures."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from stack import Stack
from test_page import SAMPLE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect


@pytest.fixture(scope="module")
def page(browser: Browser, stack: Stack) -> Iterator[Page]:
    """One page for all tests, which leave it as it is."""
    page = browser.new_page()
    page.set_default_timeout(20_000)
    page.goto(stack.url + "/ui#replay")
    expect(page.locator("#totals-1")).to_contain_text("requests ended")
    yield page
    page.close()


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


def test_each_request_of_an_iteration_has_a_row_of_its_own(page: Page, stack: Stack) -> None:
    """In a recorded sample, with lost batches, and with new owners for longer than the page keeps."""
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


def test_a_free_row_is_taken_by_the_next_request(page: Page, stack: Stack) -> None:
    """Also if the end of the one before is listed in the iteration that the next one joins."""
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


def test_a_gap_says_why_no_iteration_was_drawn(page: Page, stack: Stack) -> None:
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


FIGURES = """async ([url, state]) => {
    const { Figures } = await import(url);
    new Figures().show(state, { rate: 0, tokens: 0 });
    const texts = (selector) => [...document.querySelectorAll(selector)].map((one) => one.textContent);
    return [texts("#kv-blocks"), texts("#engines li")];
}"""


def test_an_engine_of_an_earlier_server_does_not_count(page: Page, stack: Stack) -> None:
    one = {"ready": True, "spare": True, "spare_scheduler": True, "epoch": None, "blocks": 100, "used": 10, "batch": 4}
    engines = [one | {"name": "old/0", "alive": False}, one | {"name": "new/0", "alive": True}]
    state = {"running": 1, "waiting": 0, "gateways": 1, "tokens_per_second": 0, "engines": engines}
    blocks, shown = page.evaluate(FIGURES, [stack.url + "/ui/figures.js", state])
    assert blocks == ["10 of 100 blocks"]
    assert shown == [
        "downEngine old/0no scheduler runs it",
        "readyEngine 0batch of 4 · spare engine, spare scheduler",
    ]


RATES = """async ([url, state, iterations]) => {
    const { Figures, ratesOf } = await import(url);
    const { Timeline } = await import(url.replace("figures", "timeline"));
    const timeline = new Timeline();
    timeline.add({ epoch: "1:a", iterations, requests: {} });
    const text = (id) => document.getElementById(`figure-${id}`).textContent;
    new Figures().show(state, ratesOf([timeline], 3000));
    const shown = [text("drafts"), text("drafts-gain"), text("tokens-per-iteration")];
    new Figures().show(state, ratesOf([timeline], 9000));
    return [shown, [text("drafts"), text("drafts-gain"), text("tokens-per-iteration")]];
}"""


def test_the_share_of_right_drafts_and_their_gain_are_shown(page: Page, stack: Stack) -> None:
    one = {"ms": 10, "blocks": 1, "ended": [], "preempted": []}
    old = one | {"step": 1, "at": 900, "requests": [[1, 1, "t"]], "drafts": [[1, 8, 0]]}  # more than two seconds ago
    two = one | {"step": 2, "at": 2000, "requests": [[1, 4, "t"], [2, 1, "t"]], "drafts": [[1, 4, 3]]}
    three = one | {"step": 3, "at": 2020, "requests": [[1, 2, "t"], [3, 9, "i"]], "drafts": [[1, 4, 1]]}
    state = {"running": 1, "waiting": 0, "gateways": 1, "tokens_per_second": 0, "engines": []}
    now, later = page.evaluate(RATES, [stack.url + "/ui/figures.js", state, [old, two, three]])
    assert now == ["50", "2.3", "8"]  # 4 of 8 right; 4 more tokens in 3 increments; 16 tokens in 2 iterations
    assert later == ["–", "–", "0"]


def test_engines_follow_their_model_and_say_how_they_sleep_and_why_they_failed(page: Page, stack: Stack) -> None:
    one = {"ready": True, "alive": True, "spare": False, "spare_scheduler": True, "epoch": None, "sleep": ""}
    one |= {"failure": "", "blocks": 100, "used": 0, "batch": 4}
    engines = [
        one | {"name": "c/0"},
        one | {"name": "c.mb/0", "sleep": "off"},
        one | {"name": "c.mc/0", "ready": False, "failure": "it is too large"},
    ]
    models = [
        {"name": n, "running": 1, "waiting": 2, "engines": [e["name"]]} for n, e in zip("abc", engines, strict=True)
    ]
    state = {"running": 3, "waiting": 6, "gateways": 1, "tokens_per_second": 0, "engines": engines, "models": models}
    blocks, shown = page.evaluate(FIGURES, [stack.url + "/ui/figures.js", state])
    assert blocks == ["0 of 200 blocks"]
    assert shown == [
        "a1 running, 2 waiting",
        "readyEngine 0 of abatch of 4 · spare scheduler",
        "b1 running, 2 waiting",
        "offEngine 0 of ba request wakes it up",
        "c1 running, 2 waiting",
        "failedEngine 0 of cit is too large",
    ]


def recorded(**changes: Any) -> str:
    """A line of a recording: two iterations of one request, the second one with `changes`."""
    one = {"step": 1, "at": 0, "ms": 10, "requests": [[1, 4, "i"]], "blocks": 1, "ended": [], "preempted": []}
    two = one | {"step": 2, "at": 20, "requests": [[1, 1, "t"]], "ended": [[1, "stop"]]}
    request = {"prompt": 4, "class": "<b>0</b>", "id": "<b>id</b>", "slot": 4_000_000_000, "uid": 7, "ends": 3}
    data = {"engine": "0", "epoch": "1:a", "iterations": [one, two | changes], "requests": {"1": request}}
    return json.dumps({"event": "iterations", "data": data})


def opened(page: Page, text: str) -> str:
    """Open a recording; returns the name of its file."""
    name = f"<b>{secrets.token_hex(4)}</b>.jsonl"
    page.locator("#file-0").set_input_files([{"name": name, "mimeType": "text/plain", "buffer": text.encode()}])
    return name


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "it has no iterations"),
        ("\x00\xff", "line 1: "),
        ('{"event": "iterations"}', "line 1: "),
        ('{"event": "state", "data": {}}\n[', "line 2: "),
        (recorded(at=-1), "line 1: an iteration at -1 ms after one at 0 ms"),
        (recorded(ms=-1), "line 1: an iteration at 20 ms that takes -1 ms"),
        (recorded(at="<b>"), "line 1: an iteration at <b> ms that takes 10 ms"),
        (recorded(at=1e300), "line 1: an iteration at 1e+300 ms"),
        (
            recorded(requests=[[n, 1, "t"] for n in range(2000)]),
            "line 1: an iteration of 2000 requests",
        ),
        (recorded() + "\n" + recorded().replace('"0"', '"1"'), "line 2: iterations of the engines 0 and 1"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(page: Page, text: str, error: str) -> None:
    name = opened(page, text)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text(f"{name} is no recording: {error}")
    assert alert.locator("b").count() == 0


@pytest.mark.parametrize(
    "changes", [{}, {"ms": 1e13}, {"ms": 0}, {"requests": [[1, 1e300, "?"], ["__proto__", -1, 4]]}]
)
def test_a_strange_recording_is_drawn(page: Page, changes: dict[str, Any]) -> None:
    name = opened(page, recorded(**changes))
    expect(page.locator("#name-0")).to_have_text(name)
    expect(page.get_by_role("alert")).to_be_empty()
    page.locator("#replay-0 .overlay").press("ArrowLeft")
    expect(page.locator("#replay-0 .tip")).to_contain_text("<b>id</b>iteration 1 at")
    assert page.locator("#replay b").count() == 0


DROP = """([selector, name, text]) => {
    const dataTransfer = new DataTransfer();
    if (name) dataTransfer.items.add(new File([text], name));
    else dataTransfer.setData("text/plain", text);
    const event = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
    document.querySelector(selector).dispatchEvent(event);
    return event.defaultPrevented;
}"""


def test_a_dropped_file_is_opened_and_never_replaces_the_page(page: Page) -> None:
    assert page.evaluate(DROP, ["#replay-1", "dropped.jsonl", recorded()])
    expect(page.locator("#name-1")).to_have_text("dropped.jsonl")
    assert page.evaluate(DROP, ["header", "missed.jsonl", recorded()])
    assert not page.evaluate(DROP, ["#text", "", "a text for the chat"])
