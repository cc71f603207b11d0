"""What a run says at its end, and that a fault without a target is told, not forgotten."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from load.chaos import __main__ as command
from load.chaos.checker import check
from load.chaos.faults import Fault, NoTarget, Site
from load.chaos.report import Injection
from load.chaos.run import ChaosOptions, hurt, inject, tell
from load.chaos.streams import Outcome
from load.chaos.violations import Violation
from load.chaos.workload import ChaosJob

OPTIONS = ChaosOptions(Path(), 60, 10, 0.5, 0, 32, "tiny", 1, 9, "strict", ["engine"], [])
SITE: Any = None  # the faults of these tests touch nothing


def outcome(name: str = "greedy", **fields: object) -> Outcome:
    return replace(Outcome(ChaosJob(name, "/", {}), 0, 1.0, arrivals=[1.0, 2.0, 4.5], end=5.0), **fields)


def told(capsys: pytest.CaptureFixture[str], *outcomes: Outcome, violations: tuple[Violation, ...] = ()) -> str:
    verdict = check([], [])
    verdict.violations.extend(violations)
    skipped = Injection("gateway", 2.5, "no gateway")
    held = tell(OPTIONS, [Injection("engine", 2.0), skipped], list(outcomes), verdict)
    text = capsys.readouterr().out
    assert held == ("all rules held" in text and "failed:" not in text and "not as undisturbed:" not in text)
    return text


def test_a_run_in_which_nothing_was_lost(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(
        capsys,
        outcome(),
        outcome("poison", error="the engine died, or the scheduler failed, 3 times while it ran this request"),
    )
    assert "| engine | 1 | 2.5 | 2.5 | 2.5 | 2.5 |" in text
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
        ({"job": ChaosJob("poison", "/", {})}, "| lost | 1 |"),  # it must fail
    ],
)
def test_what_became_of_a_request_makes_the_run_fail(
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

    faults = [Fault("a", hit), Fault("b", miss), Fault("a", hit)]
    injections = await hurt(SITE, faults, every=0.02, seconds=60, at_work=lambda: True)
    assert [(i.fault, i.skipped) for i in injections] == [("a", ""), ("b", "no engine"), ("a", "")]
    assert done == ["hit", "hit"]
    assert await hurt(SITE, [Fault("a", hit)], every=0.02, seconds=0, at_work=lambda: True) == []
    assert await hurt(SITE, [Fault("a", hit)], every=0.02, seconds=0.1, at_work=lambda: False) == []
    assert (await inject(SITE, Fault("b", miss))).skipped == "no engine"


def test_an_unknown_fault_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["load.chaos", "--faults", "engine,moon"])
    with pytest.raises(SystemExit):
        command.main()
    assert "no fault moon" in capsys.readouterr().err
