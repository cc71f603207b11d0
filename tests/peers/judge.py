"""What of a suite passed, does not apply or failed, by the list in `not_applicable.tsv`; and the table of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.clients.outcome import Outcome, Step
from tests.peers.catalogue import SUITES, Suite

LIST = Path(__file__).parent / "not_applicable.tsv"
HEAD = "| suite | version | passed | not applicable | failed |"
RULE = "| --- | --- | --- | --- | --- |"


@dataclass(frozen=True, slots=True)
class Entry:
    """Tests of a suite that do not apply, or files that are not run. `pattern` is compared with the whole name of one;
    `*` stands for any text."""

    suite: str
    pattern: str
    reason: str

    def fits(self, name: str) -> bool:
        return re.fullmatch(self.expression, name, re.DOTALL) is not None

    @property
    def expression(self) -> str:
        """The pattern as a regular expression."""
        return ".*".join(map(re.escape, self.pattern.split("*")))

    @property
    def of_files(self) -> bool:
        return self.pattern.endswith(".py")


def read(file: Path = LIST) -> list[Entry]:
    """The entries, one a line: suite, pattern and reason, parted by tabs. Lines that begin with # are comments."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return [Entry(*line.split("\t")) for line in lines]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one suite. `needless`: entries that fit no test, or only tests that pass."""

    suite: Suite
    passed: Sequence[Step] = ()
    listed: Sequence[Step] = ()
    failed: Sequence[Step] = ()
    needless: Sequence[Entry] = ()
    missing: str = ""


def verdict(suite: Suite, outcome: Outcome, entries: Sequence[Entry]) -> Verdict:
    """Each step that did not pass is listed or failed."""
    if outcome.missing:
        return Verdict(suite, missing=outcome.missing)
    mine = [entry for entry in entries if entry.suite == suite.name]
    listed = [step for step in outcome.failures if any(entry.fits(step.name) for entry in mine)]
    return Verdict(
        suite,
        [step for step in outcome.steps if step.passed],
        listed,
        [step for step in outcome.failures if step not in listed],
        [entry for entry in mine if not any(entry.fits(step.name) for step in listed)],
    )


def line(suite: Suite, step: Step, entries: Sequence[Entry]) -> str:
    """One test as it is printed when it ends."""
    seen = verdict(suite, Outcome(suite.client, [step]), entries)
    if seen.failed:
        return f"  {step.name}: FAILED ({step.detail})"
    return f"  {step.name}: {'passed' if seen.passed else 'not applicable'}"


def table(verdicts: Sequence[Verdict], before: str = "") -> str:
    """The rows of these suites; those of others stay as they are in `before`, if the version is the same."""
    rows = {suite.name: _kept(suite, before) for suite in SUITES} | {v.suite.name: _row(v) for v in verdicts}
    return "\n".join([HEAD, RULE, *filter(None, rows.values())])


def replaced(document: str, verdicts: Sequence[Verdict]) -> str:
    """The document with its table, which ends with a blank line, written anew."""
    before, head, rest = document.partition(HEAD)
    assert head, f"the document has no table that begins with {HEAD!r}"
    old, blank, after = rest.partition("\n\n")
    return before + table(verdicts, head + old) + blank + after


def _kept(suite: Suite, before: str) -> str:
    return next((line for line in before.splitlines() if line.startswith(f"| {suite.name} | {suite.version} |")), "")


def _row(v: Verdict) -> str:
    if v.missing:
        return f"| {v.suite.name} | {v.suite.version} | not run: {v.missing.replace('|', ' ')} | | |"
    files = sum(step.name.endswith(".py") for step in v.listed)
    listed = f"{len(v.listed) - files}" + (f", and {files} files" if files else "")
    return f"| {v.suite.name} | {v.suite.version} | {len(v.passed)} | {listed} | {len(v.failed)} |"
