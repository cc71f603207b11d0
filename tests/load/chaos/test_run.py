"""The results that a run prints, and the report of faults without a target."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from load.chaos import __main__ as command
from load.chaos.checker import Least, check
from load.chaos.faults import Fault
from load.chaos.grounds import ChaosOptions, Injection, OwnPool
from load.chaos.history import Violation
from load.chaos.run import inject, inject_faults, print_results
from load.chaos.site import NoTarget, Site
from load.chaos.streams import Outcome, Streams
from load.trace import HttpRequest

OPTIONS = ChaosOptions(Path(), seconds=60, streams=2, length=32)
WRONG = ("failed", "not as undisturbed", "not valid")  # what the lines about requests begin with
SITE: Any = None  # the faults of these tests have no effect


def outcome(name: str = "greedy", **fields: object) -> Outcome:
    return replace(Outcome(HttpRequest("/", {}, name), 0, 1.0, arrivals=[1.0, 2.0, 4.5], end=5.0), **fields)


def told(capsys: pytest.CaptureFixture[str], *outcomes: Outcome, violations: tuple[Violation, ...] = ()) -> str:
    verdict = check([], [], Least(0, 0, 0))
    verdict.violations.extend(violations)
    skipped = Injection("gateway", 2.5, "no gateway")
    held = print_results(OPTIONS, [Injection("engine", 2.0, streams=2), skipped], list(outcomes), verdict)
    text = capsys.readouterr().out
    assert held == ("all rules held" in text and not any(f"{what}:" in text for what in WRONG))
    return text


def test_a_run_in_which_nothing_was_lost(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(
        capsys,
        outcome(),
        outcome("poison", error="the engine died, or the scheduler failed, 3 times while it ran this request"),
    )
    assert "| engine | 1 | 2 | 0 | 2.5 | 2.5 | 2.5 | 2.5 |" in text
    assert "| lost | 0 |" in text
    assert "| poisoned, failed alone as they must | 1 |" in text
    assert "| longest gap in a stream, s | 2.5 |" in text
    assert "Not possible just then: gateway (no gateway) 1x" in text
    assert "all rules held" in text


@pytest.mark.parametrize(
    ("fields", "row"),
    [
        ({"error": "no sign of life"}, "| lost | 1 |"),
        ({"wrong": "choice 0: text"}, "| wrong | 1 |"),
        ({"invalid": "'a' is not of type 'integer'"}, "| answers that are not valid | 1 |"),
        ({"request": HttpRequest("/", {}, "poison")}, "| lost | 1 |"),  # poison must fail
    ],
)
def test_a_wrong_or_failed_request_makes_the_run_fail(
    capsys: pytest.CaptureFixture[str], fields: dict, row: str
) -> None:
    assert row in told(capsys, outcome(**fields))


@pytest.mark.parametrize(
    ("rule", "row"),
    [("duplicated", "duplicated"), ("unfinished", "lost"), ("published", "wrong"), ("fence", "other violations")],
)
def test_a_violation_makes_the_run_fail(capsys: pytest.CaptureFixture[str], rule: str, row: str) -> None:
    text = told(capsys, outcome(), violations=(Violation(rule, "r/0"),))
    assert f"| {row} | 1 |" in text
    assert f"{rule}: r/0" in text
    assert "History checker: 1 violations" in text


async def test_faults_come_one_after_the_other() -> None:
    done = []

    async def hit(site: Site) -> None:
        done.append("hit")

    async def miss(site: Site) -> None:
        raise NoTarget("engine")

    streams = with_open(2)
    faults = [Fault("a", hit), Fault("b", miss), Fault("a", hit)]
    injections = await inject_faults(SITE, faults, 0.02, 60, streams, 3)
    told = [(i.fault, i.skipped, i.streams) for i in injections]
    missed = ("b", "no engine", 2)
    assert told == [("a", "", 2), missed, ("a", "", 2), missed, missed]  # a fault without a target is repeated
    assert done == ["hit", "hit"]
    assert await inject_faults(SITE, [Fault("a", hit)], 0.02, 0, streams, 3) == []
    assert await inject_faults(SITE, [Fault("a", hit)], 0.02, 0.1, with_open(1), 3) == []  # not half of them are open
    assert (await inject(SITE, Fault("b", miss), streams)).skipped == "no engine"
    assert (await inject(SITE, Fault("a", hit), with_open(0))).skipped == "no open stream"


def with_open(count: int) -> Streams:
    streams = Streams(SITE, None, 1.0)
    streams.outcomes = [outcome(end=0.0)] * count + [outcome()]
    return streams


def test_what_a_verdict_needs_follows_from_the_length_of_the_run() -> None:
    assert OPTIONS.least == Least(requests=2, tokens=16, faults=1)
    assert replace(OPTIONS, seconds=600).least == Least(requests=20, tokens=160, faults=15)
    assert replace(OPTIONS, seconds=1).least == Least(requests=1, tokens=8, faults=1)


def test_only_a_server_that_does_not_sync_loses_something_by_its_death() -> None:
    made = [Injection("engine", 1.0), Injection("pool", 2.0), Injection("everything", 3.0)]
    assert OwnPool(OPTIONS).losses(made) == []
    first, second = OwnPool(replace(OPTIONS, durability="everysec")).losses(made)
    assert second - first == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("status", [408, 429])
def test_a_request_may_be_refused_for_want_of_room_or_time(capsys: pytest.CaptureFixture[str], status: int) -> None:
    text = told(capsys, outcome(error=f"status {status}: no", status=status))
    assert "| refused or given up for want of time, as they may be | 1 |" in text
    assert "| lost | 0 |" in text
    assert "| lost | 1 |" in told(capsys, outcome(error="status 400: no", status=400))


def test_an_unknown_fault_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["load.chaos", "--faults", "engine,moon"])
    with pytest.raises(SystemExit):
        command.main()
    assert "no fault moon" in capsys.readouterr().err
