"""What `make clients` makes of its scripts. The clients themselves run there, not here."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.clients import outcome, report
from tests.clients.__main__ import SCRIPTS, finished, replaced
from tests.clients.catalogue import CLIENTS, Client, chosen
from tests.clients.served import DEFAULT, FORMATS

CLIENT = Client("some client", "some.py", ("some-client[extra]==1.2.3",), timeout=20)
BEGIN = """
from steps import expect, step

@step("chat")
def _() -> str:
    return "Paris"

@step("stream")
async def _() -> None:
    expect(1 + 1 == 3, "two")

@step("tools")
def _() -> None:
    raise ValueError("no tools | here")

print("a library says something")
"""


def run(folder: Path, source: str, client: Client = CLIENT) -> outcome.Outcome:
    script = folder / "some.py"
    script.write_text(source)
    told = {"ORCA_URL": "http://127.0.0.1:1", "ORCA_MODEL": "m", "ORCA_MODEL_FOLDER": "f", "ORCA_SCRATCH": str(folder)}
    command = [sys.executable, str(script)]
    heard: list[outcome.Step] = []
    done = outcome.run(client, command, told | {"PYTHONPATH": str(SCRIPTS)}, folder / "log", heard.append)
    assert heard == done.steps
    return done


def test_steps_of_a_script_and_their_row(tmp_path: Path) -> None:
    done = run(tmp_path, BEGIN)
    assert done.steps == [
        outcome.Step("chat", True, "Paris"),
        outcome.Step("stream", False, "AssertionError: unexpected: 'two'"),
        outcome.Step("tools", False, "ValueError: no tools | here"),
    ]
    assert done.failures == done.steps[1:]
    text = report.markdown([done])
    assert "| some client | 1.2.3 | chat; stream; tools | 1 of 3 |" in text
    assert "- some client: stream: AssertionError: unexpected: 'two'\n" in text
    assert text.endswith("- some client: tools: ValueError: no tools \\| here\n")


def test_a_step_is_found_on_a_line_on_which_a_library_prints_too(tmp_path: Path) -> None:
    line = 'said {"step": "chat", "passed": true, "detail": "Paris"} {'
    assert run(tmp_path, f"print({line!r})").steps == [outcome.Step("chat", True, "Paris")]


@pytest.mark.parametrize(
    ("end", "detail"),
    [("raise SystemExit('it broke')", "ended with 1: it broke"), ("import time; time.sleep(60)", "not within 1 s")],
)
def test_a_script_that_ends_badly_is_a_failure(tmp_path: Path, end: str, detail: str) -> None:
    impatient = Client("some client", "some.py", CLIENT.packages, timeout=1 if "sleep" in end else 20)
    done = run(tmp_path, end, impatient)
    assert done.failures == [outcome.Step("the script", False, detail)]


def test_a_script_that_says_nothing_is_a_failure(tmp_path: Path) -> None:
    assert run(tmp_path, "").failures == [outcome.Step("the script", False, "said nothing")]


def test_each_of_several_servers_is_a_step(tmp_path: Path) -> None:
    several = replace(CLIENT, served=FORMATS[:2])
    good, bad = [outcome.Step("chat", True), outcome.Step("stream", True)], [outcome.Step("chat", False, "no call")]
    done = {
        (several, served): outcome.Outcome(several, steps)
        for served, steps in zip(FORMATS[:2], (good, bad), strict=True)
    }
    first, second = FORMATS[:2]
    expected = [outcome.Step(first.name, True, "2 steps"), outcome.Step(second.name, False, "chat: no call")]
    assert outcome.together(several, done).steps == expected
    alone = outcome.Outcome(CLIENT, good)
    assert outcome.together(CLIENT, {(CLIENT, DEFAULT): alone}) is alone


def test_a_client_has_a_row_when_it_has_run_against_all_its_servers() -> None:
    several, good = replace(CLIENT, served=FORMATS[:2]), [outcome.Step("chat", True)]
    done = {(CLIENT, DEFAULT): outcome.Outcome(CLIENT, good), (several, FORMATS[0]): outcome.Outcome(several, good)}
    assert finished([CLIENT, several], done) == [outcome.Outcome(CLIENT, good)]
    done[several, FORMATS[1]] = outcome.Outcome(several, good)
    assert [one.client for one in finished([CLIENT, several], done)] == [CLIENT, several]


def test_a_client_that_is_not_there_is_no_failure() -> None:
    missing = outcome.Outcome(CLIENT, missing="no such\nversion")
    assert not missing.failures
    assert "cannot be installed here: no such version | not run |" in report.markdown([missing])


def test_a_document_keeps_what_stands_before_its_table(tmp_path: Path) -> None:
    done, document = [outcome.Outcome(CLIENT, [outcome.Step("chat", True)])], tmp_path / "clients.md"
    table = report.markdown(done)
    document.write_text("# Clients\n\n" + table + "\nFailed:\n")
    assert replaced(document, done) == "# Clients\n\n" + table


def test_rows_of_other_clients_stay_unless_the_version_is_another(tmp_path: Path) -> None:
    """`make clients CLIENTS=...` runs some. The name of one client begins that of another."""
    first, second, *_, last = CLIENTS
    failed, passed = [outcome.Step("chat", False, "two")], [outcome.Step("chat", True)]
    document = tmp_path / "clients.md"
    assert second.name.startswith(first.name)
    document.write_text(replaced(document, [outcome.Outcome(client, failed) for client in (last, second, first)]))
    kept = report.markdown([outcome.Outcome(first, passed), *(outcome.Outcome(c, failed) for c in (second, last))])
    assert replaced(document, [outcome.Outcome(first, passed)]) == kept
    document.write_text(document.read_text().replace(f"| {last.version} |", "| 0.0.1 |"))
    assert last.name not in replaced(document, [outcome.Outcome(first, passed)])


def test_every_script_is_there_and_every_version_is_pinned() -> None:
    assert {client.script for client in CLIENTS} <= {file.name for file in SCRIPTS.iterdir()}
    for client in CLIENTS:
        assert all(("==" if client.kind == "python" else "@") in package[1:] for package in client.packages)
        assert client.version[0].isdigit()


def test_clients_are_chosen_by_the_beginning_of_a_name() -> None:
    assert [client.name for client in chosen(["litellm", "vercel"])] == [
        "Vercel ai",
        "Vercel ai, structured output and tools",
        "litellm SDK",
        "litellm proxy",
        "Vercel ai, vectors",
        "litellm SDK, vectors",
        "Vercel ai, formats of calls",
    ]
    assert chosen([]) == list(CLIENTS)
    with pytest.raises(ValueError, match="no client 'nobody'; there are: openai"):
        chosen(["nobody"])
