"""The table of clients, as `docs/clients.md` carries it."""

from __future__ import annotations

from collections.abc import Sequence

from tests.clients.outcome import Outcome, Step

HEAD = ("client", "version", "what was done", "passed")


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The table, and below it a line for each step that failed."""
    rows = [HEAD, ("---",) * len(HEAD), *(_row(outcome) for outcome in outcomes)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([table, *_failures(outcomes)]) + "\n"


def line(step: Step) -> str:
    """One step as it is printed while the clients run."""
    mark = "passed" if step.passed else "FAILED"
    return f"  {step.name}: {mark}" + (f" ({step.detail})" if step.detail else "")


def _row(outcome: Outcome) -> tuple[str, ...]:
    client = outcome.client
    if outcome.missing:
        return client.name, client.version, f"cannot be installed here: {_cell(outcome.missing)}", "not run"
    done = [_cell(step.name) for step in outcome.steps]
    passed = f"{len(done) - len(outcome.failures)} of {len(done)}"
    return client.name, client.version, "; ".join(done), passed


def _failures(outcomes: Sequence[Outcome]) -> list[str]:
    failed = [(outcome, step) for outcome in outcomes for step in outcome.failures]
    lines = [f"- {outcome.client.name}, {step.name}: {_cell(step.detail)}" for outcome, step in failed]
    return ["", "Failed:", "", *lines] if lines else []


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
