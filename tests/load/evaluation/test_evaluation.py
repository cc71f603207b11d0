"""The parts of the evaluation at a small scale, their files, and what is put beside what."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from load.bench.figures import Figures
from load.bench.overload import Results
from load.bench.parts import over_http
from load.bench.parts.recovery import Kill
from load.chaos.streams import Outcome
from load.curves import Curve, Point
from load.evaluation import __main__ as evaluation
from load.evaluation import parts, report
from load.evaluation.bench import Bench, Found
from load.evaluation.parts import article, figure_10, figure_11, overload, recovery, tinyorca, vllm
from load.evaluation.rates import LOADS, to_json
from load.evaluation.results import EARLIER, Clock, Result, read, save
from load.in_process import Setup, run_in_process
from load.options import Options
from load.trace import Answer, HttpRequest, Request
from load.workloads import paper
from services.engine.null import NullEngine
from services.messages import EngineFigures
from services.scheduling import Knobs

ROOT = Path(__file__).parents[3]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def engine() -> NullEngine:
    return NullEngine(EngineFigures("m", 4096, 4096, 16, 50_000, "null"))


@pytest.fixture
def bench(engine: NullEngine) -> Bench:
    return Bench(Options(), seconds=0.01, engine=engine)


def curves(*labels: str) -> list[Curve]:
    points = [Point(load * 4, 0.02 / (1.01 - load)) for load in LOADS]
    return [Curve(label, 4.0, points) for label in labels]


def killed(at: float = 10.0) -> Kill:
    outcomes = [Outcome(HttpRequest("/", {}), n, 0.0, arrivals=[9.9, 9.95, 10.4, 10.45]) for n in range(2)]
    return Kill(at, 0.0, 100, outcomes)


def measured_elsewhere() -> dict[str, Found]:
    """What the parts find that need a server, through the functions that make their figures."""
    results = Results(sent=8, ends=[1.0], first=[0.1, 0.3], whole=[0.5, 0.9], refused=[0.01], left=1)
    rows = {f"{n}": overload.cells(results, n, 2.0) for n in (1.0, 4.0)} | {"8": overload.cells(Results(), 8.0, 0.0)}
    kills = {victim: recovery.arrivals(killed()) for victim in recovery.VICTIMS}
    lone = {vllm.LONE: {"": {"Orca": 50.0, "vLLM": 20.0}}}
    return {
        "over_http": Found({over_http.RATES: {"paper": {over_http.PLAIN: 500.0, over_http.SERVED: 390.0}}}),
        "overload": Found({overload.TITLE: rows}, {"capacity": 2.5}),
        "recovery": Found({recovery.TITLE: {"engine killed": recovery.cells(killed())}}, kills),
        "vllm": Found(lone, {"curves": to_json(curves("Orca", "vLLM"))}),
    }


def saved(folder: Path, part: str, found: Found) -> Result:
    result = Clock().result(part, "tiny in float32", 1.0, found)
    save(folder, result)
    return result


def test_the_json_of_a_short_run_makes_all_plots_and_tables(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts in process are measured, on an engine that answers at once."""
    monkeypatch.setattr(article, "LEAST", 4)
    found = measured_elsewhere() | {
        "figure_10": Found({}, {"curves": to_json(curves(*(variant.label for variant in figure_10.VARIANTS)))}),
        "figure_11": Found({}, {"All alike": to_json(curves(*(variant.label for variant in figure_11.VARIANTS)))}),
        "tinyorca": Found(tinyorca.figures(bench.engine, {"short_long_mix": paper(4)})),
        "article": article.measure(bench),
    }
    assert set(found) == set(parts.known())
    for name, one in found.items():
        saved(tmp_path, name, one)
    evaluation.main(["--draw", "--out", str(tmp_path)])
    written = (tmp_path / report.REPORT).read_text()
    for name in found:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)
        assert f"## {name}\n" in written
        assert f"]({name}.png)" in written
    assert "| short_long_mix, request-level |" in written


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


def test_both_policies_give_each_request_its_tokens(engine: NullEngine) -> None:
    requests = paper(12)
    setups = [Setup(Knobs(4), scheduler=policy) for policy in tinyorca.POLICIES.values()]
    runs = [run_in_process(engine, requests, setup) for setup in setups]
    for run in runs:
        assert [len(output) for output in run.outputs] == [request.max_new_tokens for request in requests]
        assert run.iterations >= max(request.max_new_tokens for request in requests)
    assert runs[0].outputs == runs[1].outputs


def test_a_short_request_leaves_its_place_under_iteration_level_scheduling_only(engine: NullEngine) -> None:
    requests = [Request([5] * 4, 30), Request([5] * 4, 1), Request([5] * 4, 20)]
    rows = tinyorca.figures(engine, {"tiny": requests})[tinyorca.HERE]
    by_iteration, by_request = (cells["iterations"] for cells in rows.values())
    assert by_request == 30 + 20
    assert 30 <= by_iteration < by_request


def test_users_send_all_requests_one_after_the_other(bench: Bench) -> None:
    requests = [Request([5] * 8, 4) for _ in range(3 * article.USERS)]
    answers = asyncio.run(article.closed_loop(bench, article.SETUPS["Orca"], requests))
    assert len(answers) == len(requests)
    running = [
        sum(one.arrived < other.times[-1] and other.arrived <= one.arrived for other in answers) for one in answers
    ]
    assert max(running) <= article.USERS


def test_the_times_of_users_are_between_tokens_and_to_the_first() -> None:
    request = Request([5], 3)
    answers = [Answer(request, 0.0, [1] * 3, [0.5, 0.6, 1.0]), Answer(request, 1.0, [1] * 3, [1.1, 1.2, 2.0])]
    assert article.cells(answers) == pytest.approx(
        dict(zip((*article.COLUMNS, article.LONGEST), (3.0, 400.0, 800.0, 500.0, 800.0), strict=True))
    )


def test_what_a_kill_did_is_read_from_the_arrivals() -> None:
    cells = recovery.cells(killed())
    assert cells["longest gap after the kill, ms"] == pytest.approx(450)
    assert recovery.arrivals(killed())[0] == [-0.1, -0.05, 0.4, 0.45]


def test_the_figures_of_the_run_before_stand_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first: Figures = {"T": {"a": {"x": 100.0}}}
    second: Figures = {"T": {"a": {"x": 200.0, "y": 0.5}, "b": {"x": 7.0}}}
    assert report.tables(second, first) == [
        "T:\n\n|  | x | y |\n| --- | ---: | ---: |\n| a | 200 (100) | 0.500 |\n| b | 7 | - |"
    ]
    over = over_http.RATES
    for speed in (390.0, 410.0):
        found = Found({over: {"paper": {over_http.PLAIN: 500.0, over_http.SERVED: speed}}})
        result = saved(tmp_path, "over_http", found)
    assert read(tmp_path) == {"over_http": result}
    assert read(tmp_path / EARLIER)["over_http"].figures[over]["paper"][over_http.SERVED] == 390.0
    evaluation.main(["--draw", "--out", str(tmp_path)])
    assert "| paper | 500 (500) | 410 (390) |" in (tmp_path / report.REPORT).read_text()
    evaluation.main(["--draw", "--out", str(tmp_path), "--compare", str(tmp_path)])
    assert "| paper | 500 (500) | 410 (410) |" in (tmp_path / report.REPORT).read_text()


def test_vllm_is_measured_only_where_an_interpreter_is_named() -> None:
    with pytest.raises(SystemExit, match="needs --vllm-python"):
        evaluation.main(["--part", "vllm"])
    with pytest.raises(SystemExit):
        evaluation.main(["--part", "nothing"])


def test_the_document_says_what_each_part_shows() -> None:
    document = (ROOT / "docs" / "evaluation" / "README.md").read_text()
    assert [name for name in parts.known() if f"| `{name}` |" not in document] == []
