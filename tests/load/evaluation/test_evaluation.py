"""The parts of the evaluation: what they read from answers and lines, their files, and the page of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.chaos.streams import Outcome
from load.curves import Curve, Point
from load.evaluation import __main__ as evaluation
from load.evaluation import parts
from load.evaluation.bench import Bench, Found
from load.evaluation.parts import (
    figure_10,
    figure_11,
    neighbours,
    over_http,
    overload,
    peers,
    plane,
    recovery,
    start,
)
from load.evaluation.parts.overload import Results
from load.evaluation.parts.recovery import Kill
from load.evaluation.rates import EITHER, ITERATION, LOADS, REQUEST, Variant, to_json
from load.evaluation.results import Clock, Result, page_of, read, save
from load.evaluation.spent import Busy, Spent
from load.options import Options
from load.processes import CLIENT
from load.report import Figures, tables
from load.server import ROOT
from load.trace import Answer, HttpRequest, Request, Run
from services.engine.null import NullEngine
from services.messages import EngineFigures
from services.scheduling import RequestLevelScheduler, Scheduler

PNG = b"\x89PNG\r\n\x1a\n"
SLOW = Curve("request-level 8", 2.0, [Point(0.5, 0.1), Point(1.5, 0.3)])
FAST = Curve("iteration-level 8", 8.0, [Point(2.0, 0.1), Point(6.0, 0.3)])
LONE = Curve("batch of 1", 1.0, [Point(0.4, 0.05), Point(0.9, 0.25)])


@pytest.fixture
def bench() -> Bench:
    return Bench(Options(), seconds=0.01, engine=NullEngine(EngineFigures("m", 4096, 4096, 16, 50_000, "null")))


def curves(*labels: str) -> list[Curve]:
    points = [Point(load * 4, 0.02 / (1.01 - load)) for load in LOADS]
    return [Curve(label, 4.0, points) for label in labels]


def killed(at: float = 10.0) -> Kill:
    outcomes = [Outcome(HttpRequest("/", {}), n, 0.0, arrivals=[9.9, 9.95, 10.4, 10.45]) for n in range(2)]
    return Kill(at, 0.0, 100, outcomes)


def saved(folder: Path, part: str, found: Found) -> Result:
    result = Clock().result(part, "tiny in float32", 1.0, found)
    save(folder, result)
    return result


def test_the_json_of_all_parts_makes_plots_and_the_page(tmp_path: Path) -> None:
    results = Results(sent=8, ends=[1.0], first=[0.1, 0.3], refused=[0.01], left=1)
    rows = {f"{n}": overload.cells(results, n, 2.0, [0.1]) for n in (1.0, 4.0)}
    rows["8"] = overload.cells(Results(), 8.0, 0.0, [])
    kills = {victim: recovery.arrivals(killed()) for victim in recovery.PLOTTED}
    found = {
        "figure_10": Found({}, {"curves": to_json(curves(*(variant.label for variant in figure_10.VARIANTS)))}),
        "figure_11": Found({}, {"All alike": to_json(curves(*(variant.label for variant in figure_11.VARIANTS)))}),
        "over_http": Found({over_http.RATES: {"paper": {over_http.PLAIN: 500.0, over_http.SERVED: 390.0}}}),
        "overload": Found({overload.TITLE: rows}, {"capacity": 2.5}),
        "recovery": Found({recovery.TITLE: {"engine killed": recovery.cells(killed())}}, kills),
        "neighbours": Found({neighbours.FIRST: {"A floods": {"median": 0.5}}}),
        "plane": Found({plane.RATES: {"1 stream": {"tokens/s": 3452.0}}}),
        "start": Found({start.SECONDS: {"ready": {"later": 6.9}}}),
        "peers": Found({peers.LONE: {"": {"Orca": 50.0}}}, {"curves": to_json(curves("Orca", "vLLM"))}),
    }
    assert set(found) == set(parts.known())
    folder = tmp_path / "evaluation"
    results_of = {name: saved(folder, name, one) for name, one in found.items()}
    assert read(folder) == results_of
    (folder / "2026-01-02-elsewhere.md").write_text("## Elsewhere\n\nA result of another machine.\n")
    evaluation.main(["--draw", "--out", str(folder)])
    page = (tmp_path / "measurements.md").read_text()
    assert [name for name in found if f"\n## {name}\n" not in page] == []
    assert page.endswith("A result of another machine.\n")
    drawn = {file.stem for file in folder.glob("*.png")}
    assert drawn == {"figure_10", "figure_11", "over_http", "overload", "recovery", "peers"}
    assert all(f"](evaluation/{name}.png)" in page for name in drawn)
    assert (folder / "peers.png").read_bytes().startswith(PNG)
    assert "| paper | 500 | 390 |" in page


def test_the_page_of_the_documents_is_made_of_its_files() -> None:
    """`python -m load.evaluation --draw` writes it."""
    docs = ROOT / "docs"
    assert (docs / "measurements.md").read_text() == page_of(docs / "evaluation", docs)


def test_a_figure_of_the_paper_measures_every_variant(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = figure_10.VARIANTS[1:3]
    monkeypatch.setattr(figure_10, "VARIANTS", variants)
    found = figure_10.measure(bench)
    rows = found.figures[figure_10.CURVES]
    assert list(rows) == [variant.label for variant in variants]
    assert {len(cells) for cells in rows.values()} == {1 + 2 * len(LOADS)}
    assert [len(one["points"]) for one in found.series["curves"]] == [len(LOADS)] * 2
    *levels, most = found.figures[figure_10.SAME].values()
    assert len(levels) == len(figure_10.LEVELS)
    assert most["ratio"] == pytest.approx(most["iteration-level"] / most["request-level"])


def test_the_ratio_is_that_of_the_best_at_the_same_latency() -> None:
    at_fast, at_slow, most = figure_10.gains([SLOW, FAST, LONE], {"a": 0.2, "b": 0.06}).values()
    assert at_fast == pytest.approx({"ms/token": 200.0, REQUEST: 1.0, ITERATION: 4.0, "ratio": 4.0})
    # a batch of one is both policies: neither gains at a latency that no batch reaches
    assert at_slow["ratio"] == pytest.approx(1.0)
    assert most == {REQUEST: 2.0, ITERATION: 8.0, "ratio": 4.0}
    never = figure_10.gains([SLOW, Curve("iteration-level 8", 8.0, [Point(2.0, 0.01)])], {"a": 0.05})["a"]
    assert never == {"ms/token": 50.0, REQUEST: 0.0, ITERATION: 2.0}


def test_a_variant_names_its_scheduler() -> None:
    assert Variant(REQUEST, 8).setup.scheduler is RequestLevelScheduler
    assert Variant(ITERATION, 8).setup.scheduler is Variant(EITHER, 1).setup.scheduler is Scheduler
    assert Variant(REQUEST, 8).setup.knobs.max_batch_size == 8


def test_what_a_kill_did_is_read_from_the_arrivals() -> None:
    assert recovery.cells(killed())["longest gap after the kill, ms"] == pytest.approx(450)
    assert recovery.arrivals(killed())[0] == [-0.1, -0.05, 0.4, 0.45]


def test_cells_of_tables_have_about_three_digits() -> None:
    figures: Figures = {"T": {"a": {"x": 200.0, "y": 0.5}, "b": {"x": 7.0}, "c": {"y": 12_345.6}}}
    assert tables(figures) == [
        "T:\n\n|  | x | y |\n| --- | ---: | ---: |\n| a | 200 | 0.500 |\n| b | 7 | - |\n| c | - | 12,346 |"
    ]


def test_processor_time_of_tokens_and_chunks() -> None:
    answers = [Answer(Request([5], 4), 0.0, [1, 2, 3, 4], [0.1] * 4, chunks=1) for _ in range(2)]
    found = Spent(Run(answers), {"engines": 0.4, CLIENT: 0.4}, others=0.0)
    assert found.per_token(1e-3) == {"engines": 50.0, CLIENT: 50.0, "a token": 100.0, "a chunk": 400.0}
    assert Busy(seconds=3.0, took=2.0).without(1.0) == 1.0


def test_gaps_before_and_while_the_long_prompt_is_computed() -> None:
    stream = Answer(Request([5], 7), 0.0, [1] * 7, [0.1, 0.1, 0.2, 0.3, 2.3, 2.4, 2.5])
    short = Answer(Request([5], 2), 0.0, [1] * 2, [0.1, 0.3])
    long = Answer(Request([5] * 9, 1), 0.25, [1], [2.35])
    found = neighbours.cells([stream, short], long)
    assert found["longest"] == pytest.approx(2000)
    assert found["alone, median"] == pytest.approx(100)
    assert found["TTFT of the prompt, s"] == pytest.approx(2.1)
    assert found["streams that ended before"] == 1


def test_steps_that_the_command_printed() -> None:
    lines = [
        "[  0.0 s] open files are limited to 20000: 8464 connections\n",
        "[  0.1 s] starting the pool's server, /x/valkey-server\n",
        "[ 16.5 s] ready at http://127.0.0.1:21601  try: curl\n",
    ]
    assert start.printed(lines) == {"starting the pool's server": 0.1}


def test_peers_are_measured_only_where_they_are_named() -> None:
    for asked, needed in (
        (["--part", "peers"], "needs --vllm-python"),
        (["--llama-server", "x"], "belong together"),
    ):
        with pytest.raises(SystemExit, match=needed):
            evaluation.main(asked)
