"""What `make peers` makes of a suite's tests. The suites themselves run there, not here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.clients.environments import NotInstalled
from tests.clients.outcome import Outcome, Step
from tests.peers import judge
from tests.peers.catalogue import SUITES, Source, chosen
from tests.peers.sources import VARIABLE, checkout

FIRST, SECOND = SUITES[0], SUITES[1]


def outcome(**passed: bool) -> Outcome:
    return Outcome(FIRST.client, [Step(name, done) for name, done in passed.items()])


def entry(pattern: str, suite: str = FIRST.name) -> judge.Entry:
    return judge.Entry(suite, pattern, "why")


def test_what_fails_is_listed_or_failed_and_what_passes_needs_no_entry() -> None:
    entries = [entry("image*"), entry("basic"), entry("gone"), entry("other", SECOND.name), entry("a/*.py")]
    steps = {"basic": True, "image_1": False, "image_2": True, "other": False, "a/test_x.py": False}
    seen = judge.verdict(FIRST, outcome(**steps), entries)
    assert [step.name for step in seen.listed] == ["image_1", "a/test_x.py"]
    assert [step.name for step in seen.failed] == ["other"]
    assert [e.pattern for e in seen.needless] == ["basic", "gone"]
    assert "| 2 | 1, and 1 files | 1 |" in judge.table([seen])


def test_only_a_star_stands_for_text() -> None:
    assert entry("test[a?-*]").fits("test[a?-b]")
    assert not entry("test[a?-*]").fits("testa")


def test_rows_are_replaced_and_what_stands_around_the_table_stays() -> None:
    before = f"# A\n\n{judge.HEAD}\n{judge.RULE}\n| {SECOND.name} | {SECOND.version} | 7 | 1 | 0 |\n\n## B\n\n| c |\n"
    text = judge.replaced(before, [judge.verdict(FIRST, outcome(a=True, b=False), [entry("b")])])
    assert f"| {FIRST.name} | {FIRST.version} | 1 | 1 | 0 |\n| {SECOND.name} | {SECOND.version} | 7 | 1 | 0 |" in text
    assert text.startswith("# A\n\n")
    assert text.endswith("\n\n## B\n\n| c |\n")


def test_the_list_names_suites_that_exist_and_says_why() -> None:
    for one in judge.read():
        assert one.suite in {suite.name for suite in SUITES}
        assert one.reason.strip()


def test_suites_are_chosen_by_the_beginning_of_a_name() -> None:
    assert chosen([FIRST.name.lower()[:4]]) == [FIRST]
    with pytest.raises(ValueError, match="no suite 'nobody'; there are: "):
        chosen(["nobody"])


def test_only_the_folders_of_a_tag_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "mirror" / "owner" / "name"
    for name in ("tests/a.py", "src/b.py"):
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / name).write_text("1")
    git = ["git", "-C", str(theirs), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "a"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mirror"))
    place = checkout(Source("owner/name", "v1", ("tests",)), tmp_path / "here")
    assert (place / "tests" / "a.py").exists()
    assert not (place / "src").exists()
    with pytest.raises(NotInstalled, match="git fetch"):
        checkout(Source("owner/name", "v2", ("tests",)), tmp_path / "here")
