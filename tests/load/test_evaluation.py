"""The parts of the evaluation: what they make of answers, their files, and the page of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from load.bench.timing import Scale
from load.chaos.streams import Outcome
from load.curves import Curve, Point, to_json
from load.evaluation import __main__ as evaluation
from load.evaluation.bench import CLIENT, Bench, Found, Peers, Spent
from load.evaluation.parts import PARTS, figure_10, neighbours, overload, peers, recovery, sizes, start
from load.evaluation.parts.figure_10 import ITERATION, LOADS, REQUEST
from load.evaluation.results import measured, page_of, read, save
from load.options import CACHE, Options
from load.report import quantile
from load.server import ROOT
from load.trace import Answer, HttpRequest, Request, Run
from services.engine.null import NullEngine
from services.messages import EngineFigures

SLOW = Curve("request-level 8", 2.0, [Point(0.5, 0.1), Point(1.5, 0.3)])
FAST = Curve("iteration-level 8", 8.0, [Point(2.0, 0.1), Point(6.0, 0.3)])
LONE = Curve("batch of 1", 1.0, [Point(0.4, 0.05), Point(0.9, 0.25)])


def killed() -> recovery.Kill:
    outcomes = [Outcome(HttpRequest("/", {}), n, 0.0, arrivals=[9.9, 9.95, 10.4, 10.45]) for n in range(2)]
    return recovery.Kill(10.0, 0.0, 100, outcomes)


def test_the_json_of_all_parts_makes_plots_and_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = overload.Results(sent=8, ends=[1.0], first=[0.1, 0.3], refused=[0.01], left=1)
    rows = {f"{n}": overload.cells(results, n, 2.0, [0.1]) for n in (1.0, 4.0)}
    rows["8"] = overload.cells(overload.Results(), 8.0, 0.0, [])
    series = {
        "figure_10": {"curves": to_json([SLOW, FAST, LONE])},
        "overload": {"capacity": 2.5},
        "recovery": {victim: recovery.arrivals(killed()) for victim in recovery.PLOTTED},
        "peers": {"curves": to_json([SLOW])},
    }
    folder = tmp_path / "evaluation"
    for name in PARTS:
        figures = {overload.TITLE: rows} if name == "overload" else {"T": {"a": {"x": 200.0, "y": 0.5}}}
        found = Found(figures, series.get(name, {}))
        monkeypatch.setattr(PARTS[name], "measure", lambda bench, found=found: found)
        save(folder, measured(name, "tiny in float32", Bench(Options())))
    assert set(read(folder)) == set(PARTS)
    (folder / "2026-01-02-elsewhere.md").write_text("## Elsewhere\n\nA result of another machine.\n")
    evaluation.main(["--draw", "--out", str(folder)])
    page = (tmp_path / "measurements.md").read_text()
    assert [name for name in PARTS if f"\n## {name}\n" not in page] == []
    assert page.endswith("A result of another machine.\n")
    drawn = {file.stem for file in folder.glob("*.png")}
    assert drawn == set(series)
    assert all(f"](evaluation/{name}.png)" in page for name in drawn)
    assert "| a | 200 | 0.500 |" in page


def test_the_page_of_the_documents_is_made_of_its_files() -> None:
    """`python -m load.evaluation --draw` writes it."""
    docs = ROOT / "docs"
    assert (docs / "measurements.md").read_text() == page_of(docs / "evaluation", docs)


def test_a_figure_of_the_paper_measures_every_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = NullEngine(EngineFigures("m", 4096, 4096, 16, 50_000, "null"))
    monkeypatch.setattr(figure_10, "VARIANTS", figure_10.VARIANTS[1:3])
    found = figure_10.measure(Bench(Options(), seconds=0.01, engine=engine))
    rows = found.figures[figure_10.CURVES]
    assert list(rows) == ["request-level 8", "iteration-level 8"]
    assert {len(cells) for cells in rows.values()} == {1 + 2 * len(LOADS)}
    *levels, most = found.figures[figure_10.SAME].values()
    assert len(levels) == len(figure_10.LEVELS)
    assert most["ratio"] == pytest.approx(most[ITERATION] / most[REQUEST])


def test_the_ratio_is_that_of_the_best_at_the_same_latency() -> None:
    at_fast, at_slow, most = figure_10.gains([SLOW, FAST, LONE], {"a": 0.2, "b": 0.06}).values()
    assert at_fast == pytest.approx({"ms/token": 200.0, REQUEST: 1.0, ITERATION: 4.0, "ratio": 4.0})
    # a batch of one is both policies: neither gains at a latency that no batch reaches
    assert at_slow["ratio"] == pytest.approx(1.0)
    assert most == {REQUEST: 2.0, ITERATION: 8.0, "ratio": 4.0}


def test_figures_are_computed_from_arrivals_and_seconds() -> None:
    assert recovery.cells(killed())["longest gap after the kill, ms"] == pytest.approx(450)
    assert recovery.arrivals(killed())[0] == [-0.1, -0.05, 0.4, 0.45]
    answers = [Answer(Request([5], 4), 0.0, [1, 2, 3, 4], [0.1] * 4, chunks=1) for _ in range(2)]
    spent = Spent(Run(answers), {"engines": 0.4, CLIENT: 0.4}, others=0.0).per_token(1e-3)
    assert spent == {"engines": 50.0, CLIENT: 50.0, "a token": 100.0, "a chunk": 400.0}
    stream = Answer(Request([5], 7), 0.0, [1] * 7, [0.1, 0.1, 0.2, 0.3, 2.3, 2.4, 2.5])
    found = neighbours.cells([stream], Answer(Request([5] * 9, 1), 0.25, [1], [2.35]))
    assert (found["longest"], found["alone, median"]) == (pytest.approx(2000), pytest.approx(100))
    lines = ["[  0.1 s] starting the pool's server, /x/valkey\n", "[ 16.5 s] ready at http://127.0.0.1:21601  try\n"]
    assert start.printed(lines) == {"starting the pool's server": 0.1}
    assert (quantile([3.0, 1.0, 2.0], 0.5), quantile([3.0, 1.0, 2.0], 0.99)) == (2.0, 3.0)


def test_a_model_of_random_weights_is_measured_as_stored(tmp_path: Path) -> None:
    """A folder and a file of the same shape; one that is stored in a format has no folder."""
    (tmp_path / "kernels").symlink_to(CACHE / "kernels")
    options = Options(shape="tiny", cache_dir=tmp_path, device="cpu", dtype="float32")
    named = Peers(vllm_python=tmp_path / "python", llama_server=tmp_path / "llama-server")
    for form, expected in (
        ("", ["Orca", "vLLM", "Orca, tiny-Q4_K_M.gguf", "llama.cpp, tiny-Q4_K_M.gguf"]),
        ("Q8_0", ["Orca, tiny-Q8_0.gguf", "llama.cpp, tiny-Q8_0.gguf"]),
    ):
        bench = Bench(replace(options, format=form), peers=named)
        assert [name for name, _ in peers.servers(bench, tmp_path)] == expected
        other = Bench(bench.options, peers=replace(named, gguf=tmp_path / "other.gguf"))
        assert [name for name, _ in peers.servers(sizes.of_shape(other, bench.options), tmp_path)] == expected
    short = Scale(window=0.0001, budget=0.0, row_counts=(1,))
    found = [sizes.floors(replace(options, format=form), short) for form in ("", "Q8_0")]
    assert set(found[0]) == {name for name, _ in (*sizes.streams(), *sizes.prompts())} | {"weights, MiB"}
    assert 3.5 < found[0]["weights, MiB"] / found[1]["weights, MiB"] < 4.0


def test_peers_are_measured_only_where_they_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for asked, needed in (
        (["--part", "peers"], "needs --vllm"),
        (["--llama-server", "x"], "needs --gguf FILE, or --shape"),
        (["--format", "Q8_0"], "random weights of --shape"),
        (["--shape", "tiny", "--format", "fp8"], "one of Q4_0"),
    ):
        with pytest.raises(SystemExit):
            evaluation.main(asked)
        assert needed in capsys.readouterr().err
