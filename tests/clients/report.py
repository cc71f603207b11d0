"""The table of clients, as `docs/clients.md` carries it."""

from __future__ import annotations

from collections.abc import Sequence

from tests.clients.catalogue import CLIENTS, Client
from tests.clients.outcome import Outcome, Step

HEAD = "| client | version | what was done | passed |"
RULE = "| --- | --- | --- | --- |"


def markdown(outcomes: Sequence[Outcome], before: str = "") -> str:
    """The table, and below it a line for each step that failed.

    `before` is an earlier table: its rows of clients that are not among the outcomes stay, if the catalogue still has
    the client in this version.
    """
    lines = {client: _kept(client, before) for client in CLIENTS}
    lines |= {outcome.client: (_row(outcome), _failures(outcome)) for outcome in outcomes}
    rows = [row for row, _ in lines.values() if row]
    failed = [failure for _, failures in lines.values() for failure in failures]
    return "\n".join([HEAD, RULE, *rows, *(["", "Failed:", "", *failed] if failed else [])]) + "\n"


def line(step: Step) -> str:
    """One step as it is printed while the clients run."""
    mark = "passed" if step.passed else "FAILED"
    return f"  {step.name}: {mark}" + (f" ({step.detail})" if step.detail else "")


def _kept(client: Client, before: str) -> tuple[str, list[str]]:
    """The client's row in an earlier table, and its lines about failures; "" and none if it has no row there."""
    lines = before.splitlines()
    row = next((line for line in lines if line.startswith(f"| {client.name} | {client.version} |")), "")
    return row, [line for line in lines if row and line.startswith(f"- {client.name}: ")]


def _row(outcome: Outcome) -> str:
    client = outcome.client
    if outcome.missing:
        done, passed = f"cannot be installed here: {_cell(outcome.missing)}", "not run"
    else:
        done = "; ".join(_cell(step.name) for step in outcome.steps)
        passed = f"{len(outcome.steps) - len(outcome.failures)} of {len(outcome.steps)}"
    return f"| {client.name} | {client.version} | {done} | {passed} |"


def _failures(outcome: Outcome) -> list[str]:
    return [f"- {outcome.client.name}: {_cell(step.name)}: {_cell(step.detail)}" for step in outcome.failures]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
