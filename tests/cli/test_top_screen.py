"""The screen of `orca top`, drawn from iterations that the real scheduler chose in the simulator."""

from __future__ import annotations

import io

import orjson
import pytest
from rich.console import Console

from cli.live_feed import FORGOTTEN, MOST_COLUMNS, EngineView, LiveView
from cli.top import MARKS, PLAIN_MARKS, Screen, summary
from load.recording import BATCH, file_of
from load.simulation import __main__ as simulate
from services.client.sse import Event
from services.errors import OrcaError

ENGINE = "simulation/0"
STATE = {
    "at": 1,
    "model": "m",
    "waiting": 3,
    "running": 7,
    "gateways": 2,
    "engines": [
        {"name": ENGINE, "alive": True, "ready": True, "spare": True, "spare_scheduler": False, "epoch": "1:a",
         "blocks": 200, "used": 50, "batch": 7},
        {"name": "c/1", "alive": False, "ready": False, "spare": False, "spare_scheduler": False, "epoch": None,
         "blocks": 0, "used": 0, "batch": 0},
    ],
    "ttft_ms": [41.2, 95.4],
    "gap_ms": None,
    "tokens_per_second": 391.04,
}  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    folder = tmp_path_factory.mktemp("recordings")
    simulate.main(["--record", str(folder)])
    lines = [orjson.loads(line) for line in file_of(folder, "iteration").read_bytes().splitlines()]
    return [Event(orjson.dumps(line["data"]).decode(), name=line["event"]) for line in lines]


@pytest.fixture
def view(recorded: list[Event]) -> LiveView:
    view = LiveView()
    for event in [*recorded, Event(orjson.dumps(STATE).decode(), name="state")]:
        view.feed(event)
    return view


def drawn(view: LiveView, width: int, height: int, encoding: str = "utf-8") -> list[str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=out, width=width, height=height, force_terminal=True, no_color=True)
    console.print(Screen(view, "http://h:1"), end="")
    out.seek(0)
    return [
        line.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "") for line in out.read().split("\n")
    ]


def test_a_request_keeps_its_slot_until_it_ends(view: LiveView) -> None:
    columns = view.engines[ENGINE].columns
    rows: dict[int, set[int]] = {}
    for column in columns:
        assert column is not None
        assert len({n for n, _ in column.values()}) == len(column)
        for row, (n, _) in column.items():
            rows.setdefault(n, set()).add(row)
    assert {len(of_request) for of_request in rows.values()} == {1}
    assert {row for of_request in rows.values() for row in of_request} == set(range(BATCH))
    assert len(rows) > BATCH, "slots are used again"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 12), (20, 4), (5, 2), (120, 11)])
def test_the_picture_fits_each_terminal(view: LiveView, width: int, height: int) -> None:
    lines = drawn(view, width, height)
    assert len(lines) <= height + 1
    assert max(map(len, lines)) <= width


def test_the_picture_has_figures_and_the_last_iterations(view: LiveView) -> None:
    lines = drawn(view, 150, 30)
    assert lines[0].split() == ["orca", "top", "http://h:1", "m", "gateways", "2"]
    assert lines[1] == "running 7  waiting 3  391.0 tokens/s  TTFT 41 ms, p99 95 ms  between tokens -"
    assert lines[3].rstrip() == f"engine {ENGINE}  ready  batch 7  KV blocks 50 of 200 (25%)  spares: engine  epoch 1:a"
    strip = lines[4 : 4 + BATCH]
    last = list(view.engines[ENGINE].columns)[-150:]
    expected = [
        "".join(MARKS[column[row][1]] if column and row in column else " " for column in last) for row in range(BATCH)
    ]
    assert strip == expected
    assert "engine c/1  not ready" in "\n".join(lines)


def test_an_ascii_terminal_gets_ascii(view: LiveView) -> None:
    text = "\n".join(drawn(view, 100, 30, "ascii"))
    assert text.isascii()
    assert PLAIN_MARKS["t"] * 5 in text


def test_slots_that_do_not_fit_are_counted(view: LiveView) -> None:
    assert f"and {BATCH - 3} slots more" in drawn(view, 100, 16)[7]


def test_requests_whose_end_was_lost_do_not_hold_slots() -> None:
    engine = EngineView()
    for n in range(2 * MOST_COLUMNS):
        engine.add({"epoch": "1:a", "iterations": [{"requests": [[n, 1, "i"]], "ended": [], "preempted": []}]})
    assert len(engine.columns) == MOST_COLUMNS
    assert max(row for column in engine.columns if column for row in column) <= FORGOTTEN + 1


def test_a_new_owner_begins_with_a_mark_and_free_slots() -> None:
    engine = EngineView()
    for epoch in ("1:a", "2:b"):
        engine.add({"epoch": epoch, "iterations": [{"requests": [[1, 4, "i"]], "ended": [], "preempted": []}]})
    assert list(engine.columns) == [{0: (1, "i")}, None, {0: (1, "i")}]


def test_the_line_for_a_pipe(view: LiveView) -> None:
    assert summary(view) == (
        "running 7  waiting 3  391.0 tokens/s  TTFT 41 ms, p99 95 ms  between tokens -  "
        f"KV blocks of engine {ENGINE}: 50 of 200 (25%), c/1: -"
    )
    del view.state["engines"][1]
    assert summary(view).endswith("KV blocks of engine 0: 50 of 200 (25%)")
    assert summary(LiveView()) == "running 0  waiting 0  0.0 tokens/s  TTFT -  between tokens -  no engine"


@pytest.mark.parametrize(
    "event", [Event("{", name="state"), Event("[]", name="iterations"), Event('{"engine": "a"}', name="iterations")]
)
def test_an_event_that_the_feed_does_not_send_is_reported(event: Event) -> None:
    with pytest.raises(OrcaError, match="not an event of the live feed"):
        LiveView().feed(event)


def test_lost_events_are_counted_and_others_skipped() -> None:
    view = LiveView()
    for event in (Event('{"batches": 3}', name="lost"), Event('{"batches": 1}', name="lost"), Event("{}", name="new")):
        view.feed(event)
    assert view.lost == 4


def test_several_models_have_rows() -> None:
    view = LiveView()
    models = [
        {"name": name, "waiting": 3, "running": 4, "engines": [engine]}
        for name, engine in (("a", ENGINE), ("b", "c/1"))
    ]
    view.feed(Event(orjson.dumps(STATE | {"models": models}).decode(), name="state"))
    lines = drawn(view, 100, 20)
    assert [line.strip() for line in lines[2:4]] == ["a  running 4  waiting 3", "b  running 4  waiting 3"]
    assert any(line.startswith("engine 0 of a") for line in lines)
    assert "1 of b" in summary(view)
