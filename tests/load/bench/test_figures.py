"""Tables of rounds, goals, and what parts read from answers, outcomes and lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from load.bench import goals
from load.bench.figures import Figures, cell, report, values
from load.bench.parts import gaps, over_http, plane, recovery, start
from load.bench.spent import Spent
from load.chaos.streams import Outcome
from load.processes import CLIENT
from load.trace import Answer, HttpRequest, Request, Run


def test_a_cell_has_the_median_and_the_range() -> None:
    assert [cell(found) for found in ([], [1.5], [3.0, 1.0, 2.0], [12_345.6, 20_000.0])] == [
        "-",
        "1.500",
        "2.00 (1.00 to 3.00)",
        "16,173 (12,346 to 20,000)",
    ]


def test_rounds_that_measured_different_rows_and_columns_share_a_table() -> None:
    rounds: list[Figures] = [{"T": {"a": {"x": 1.0}}}, {"T": {"a": {"x": 3.0, "y": 100.0}, "b": {"y": 2.5}}}]
    assert report("About.", rounds).splitlines() == [
        "About. 2 rounds: median, minimum and maximum.",
        "",
        "T:",
        "",
        "|  | x | y |",
        "| --- | ---: | ---: |",
        "| a | 2.00 (1.00 to 3.00) | 100 |",
        "| b | - | 2.50 |",
    ]
    assert values(rounds, "T", "a", "x") == [1.0, 3.0]
    assert values(rounds, "T", "c", "x") == values(rounds, "U", "a", "x") == []


def test_goals_are_met_by_the_median_or_by_its_ratio_to_another() -> None:
    ratio, throughput = over_http.RATIO, over_http.SERVED
    ours: list[Figures] = [
        {over_http.RATES: {"paper": {ratio: r, throughput: t}}} for r, t in [(1.0, 130.0), (1.05, 140.0), (1.4, 150.0)]
    ]
    theirs: list[Figures] = [{over_http.RATES: {"paper": {throughput: 112.0}}}]
    rows = [row for goal in goals.GOALS if (row := goal.row({"over_http": ours, goals.VLLM: theirs}))]
    assert rows == [
        ["`paper` over HTTP, times in process", "at most 1.1", "1.050 (1.000 to 1.400)", "yes"],
        ["`paper` over HTTP, times vLLM", "at least 1.35", "1.250", "no"],
    ]


def test_each_goal_names_a_figure_that_its_part_measures() -> None:
    """Rows and titles are built as the parts build them; a part or victim that is renamed fails here."""
    assert {goal.place.part for goal in goals.GOALS} == set(goals.PARTS)
    prompts = {recovery.row(victim, prompt) for victim in recovery.VICTIMS for prompt in recovery.PROMPTS}
    streams = {plane.row(plane.DEFAULT_GATEWAYS, count) for count in plane.TOKENS}
    rows = {
        "recovery": prompts,
        "over_http": set(over_http.WORKLOADS),
        "gaps": set(gaps.SETTINGS),
        "plane": {*streams, plane.FIRST_TOKEN},
        "start": {start.READY},
    }
    assert [goal.what for goal in goals.GOALS if goal.place.row not in rows[goal.place.part]] == []


def test_rounds_in_a_file_are_printed_without_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rounds.json"
    file.write_text(json.dumps({"start": [{start.SECONDS: {start.READY: {start.LATER: 16.5}}}]}))
    goals.main(["--rounds", "0", "--json", str(file)])
    printed = capsys.readouterr().out
    assert "| command to `ready`, cached, s | at most 10 | 16.5 | no |" in printed
    assert "## start" in printed
    assert "## plane" not in printed
    with pytest.raises(SystemExit, match="needs --vllm-python"):
        goals.main(["--part", "vllm"])


def test_processor_time_of_tokens_and_chunks() -> None:
    request = Request([5], 4)
    answers = [Answer(request, 0.0, [1, 2, 3, 4], [0.1] * 4, chunks=1) for _ in range(2)]
    found = Spent(Run(answers), {"engines": 0.4, CLIENT: 0.4}, others=0.0)
    assert found.per_token(1e-3) == {"engines": 50.0, CLIENT: 50.0, "a token": 100.0, "a chunk": 400.0}


def test_gaps_before_and_while_the_long_prompt_is_computed() -> None:
    stream = Answer(Request([5], 7), 0.0, [1] * 7, [0.1, 0.1, 0.2, 0.3, 2.3, 2.4, 2.5])
    short = Answer(Request([5], 2), 0.0, [1] * 2, [0.1, 0.3])
    long = Answer(Request([5] * 9, 1), 0.25, [1], [2.35])
    found = gaps.cells([stream, short], long)
    assert found["longest"] == pytest.approx(2000)
    assert found["alone, median"] == pytest.approx(100)
    assert found["TTFT of the prompt, s"] == pytest.approx(2.1)
    assert found["streams that ended before"] == 1


def test_the_longest_gap_is_one_that_ends_after_the_kill() -> None:
    outcome = Outcome(HttpRequest("/", {}), 0, 0.0, arrivals=[1.0, 5.0, 5.5, 7.0])
    assert recovery.longest_gap(5.2, [outcome]) == 1.5
    assert recovery.longest_gap(4.0, [outcome]) == 4.0


def test_steps_that_the_command_printed() -> None:
    lines = [
        "[  0.0 s] open files are limited to 20000: 8464 connections\n",
        "[  0.1 s] starting the pool's server, /x/valkey-server\n",
        "[ 16.5 s] ready at http://127.0.0.1:21601  try: curl\n",
        "something else\n",
    ]
    assert start.printed(lines) == {"*starting the pool's server*": {"at": 0.1}, "*ready*": {"at": 16.5}}


def test_titles_are_shortened_to_what_tells_processes_apart() -> None:
    titles = {
        "ray::EngineActor.serve": "ray::EngineActor",
        "ray::ServeReplica:orca:gateway": "ray::ServeReplica:orca:gateway",
        "/x/bin/python -m cli serve --port 8000": "cli serve",
        "/x/bin/python -m actors.cluster.process 10 /tmp": "actors.cluster.process",
        "/x/bin/python -u /y/log_monitor.py --a": "log_monitor.py",
        "/x/raylet/raylet --raylet_socket_name=/t": "raylet",
    }
    assert {title: start.short(title) for title in titles} == titles
