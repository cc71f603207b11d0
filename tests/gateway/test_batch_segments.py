"""Each line of a batch is answered once and no acknowledged answer is lost, through crashes and new owners."""

from __future__ import annotations

import errno
import os
import resource
import tempfile
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.batches.folder import BatchFolder, BatchFolders, BatchRecord
from gateway.batches.journal import BatchJournal, LineAnswer, SegmentWriter, entry_locations
from gateway.errors import ApiError
from gateway.files.store import FileStore, StoredFile, new_id, tenant_folder
from services.settings.constants import Constants

LINES = 8


@dataclass(frozen=True)
class Life:
    """One owner: its answers in portions, and how much of the end of its segment is lost when it is killed."""

    portions: list[list[int]]
    torn: int  # bytes of the last portion that did not reach the disk
    zombie: bool  # it does not know that it lost the lease and continues after the next owner has begun


lives = st.lists(
    st.builds(
        Life,
        st.lists(st.lists(st.integers(0, LINES - 1), min_size=1, max_size=3), max_size=4),
        torn=st.sampled_from([0, 0, 1, 5, 40, 10_000]),
        zombie=st.booleans(),
    ),
    max_size=5,
)


class Site:
    """A folder of files with one batch."""

    def __init__(self, root: Path) -> None:
        self.store = FileStore(root, Constants())
        lines = [
            {"custom_id": f"line {i}", "method": "POST", "url": "/v1/completions", "body": {}} for i in range(LINES)
        ]
        content = self.store.folder("t") / "content.tmp"
        content.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
        input = StoredFile(f"file-{new_id()}", content.stat().st_size, 1, "lines", "batch")
        self.store.add("t", input, content)
        self.record = BatchRecord(
            f"batch_{new_id()}", "t", "/v1/completions", input.id, "24h", created_at=1, expires_at=2, model="m"
        )
        self.folder = BatchFolders(root).at(tenant_folder("t"), self.record.id)
        self.folder.create(self.record, self.store.content("t", input.id))
        self.epochs = 0

    def own(self) -> BatchJournal:
        self.epochs += 1
        return BatchJournal(self.folder, self.record, self.store, f"{self.epochs}-x", LINES)

    def answers(self) -> tuple[list[str], list[str]]:
        """The custom ids of the output file and the error file of an ended batch."""
        final = self.folder.final()
        assert final is not None
        files = self.store.all("t", "batch_output", newest_first=False)
        assert {file.id for file in files} == {id for id in (final.output_file_id, final.error_file_id) if id}
        return self._ids(final.output_file_id), self._ids(final.error_file_id)

    def _ids(self, id: str | None) -> list[str]:
        if id is None:
            return []
        entries = map(orjson.loads, self.store.content("t", id).read_bytes().splitlines())
        return [entry["custom_id"] for entry in entries]


def answer(number: int) -> LineAnswer:
    """Lines with an odd number fail."""
    return LineAnswer(number, number % 2 == 0, orjson.dumps({"custom_id": f"line {number}"}))


@settings(max_examples=50)
@given(lives)
def test_each_line_is_answered_once(story: list[Life]) -> None:
    with tempfile.TemporaryDirectory() as name:
        site = Site(Path(name))
        durable: set[int] = set()
        zombies: list[tuple[BatchJournal, list[list[int]]]] = []
        for life in story:
            work = site.own()
            assert not durable & set(work.pending), "an answer that was acknowledged is asked for again"
            segment = site.folder.segments()[-1]
            for portion in life.portions:
                before = segment.stat().st_size
                work.append([answer(n) for n in portion])
                if portion is life.portions[-1] and life.torn:
                    with segment.open("r+b") as file:
                        file.truncate(max(before, segment.stat().st_size - life.torn))
                else:
                    durable.update(portion)
            if life.zombie:
                zombies.append((work, life.portions))
            else:
                work.close()
        last = site.own()
        for zombie, portions in zombies:
            for portion in portions:
                zombie.append([answer(n) for n in portion])
        assert not durable & set(last.pending)
        last.append([answer(n) for n in last.pending])
        last.finish("completed")
        told = site.answers()
        assert told == ([f"line {n}" for n in range(0, LINES, 2)], [f"line {n}" for n in range(1, LINES, 2)])
        for zombie, portions in zombies:  # too late: nothing changes
            for portion in portions:
                zombie.append([answer(n) for n in portion])
            zombie.finish("expired")
            assert site.answers() == told
            zombie.close()
        last.close()


@pytest.mark.parametrize("status", ["expired", "cancelled"])
def test_lines_without_an_answer_get_an_error(tmp_path: Path, status: str) -> None:
    site = Site(tmp_path)
    work = site.own()
    work.append([answer(n) for n in (4, 0, 3)])
    work.finish(status)  # type: ignore[arg-type]
    assert site.answers() == (["line 0", "line 4"], ["line 1", "line 2", "line 3", "line 5", "line 6", "line 7"])
    final = site.folder.final()
    assert final is not None
    assert final.progress is not None
    assert (final.progress.counts.completed, final.progress.counts.failed) == (2, 6)


def test_an_owner_that_died_while_it_ended_the_batch_leaves_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    first = site.own()
    first.append([answer(n) for n in range(LINES)])
    found = entry_locations(site.folder.segments())
    first._publish("output", [0, 2], found, site.folder.segments(), "completed")
    second = site.own()
    assert second.pending == []
    second.finish("completed")
    assert len(site.answers()[0]) == LINES // 2


def test_an_owner_that_cannot_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each of many tries on a full disk would leave a file and keep the disk full."""
    site = Site(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    work = site.own()
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="full"):
            work.finish("expired")
        work.close()
    left = sorted(path for path in tmp_path.rglob("*") if path.name != "progress")
    assert left == before
    last = site.own()
    last.finish("expired")
    assert len(site.answers()[1]) == LINES


def full(_: int) -> None:
    raise OSError(errno.ENOSPC, "the disk is full")


def test_a_batch_ends_after_more_owners_than_a_process_may_have_open_files(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for _ in range(100):
        work = site.own()
        work._writer._file.write(b"torn")
        work.close()
    work = site.own()
    work.append([answer(n) for n in range(LINES)])
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path(os.devnull).open() as least:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least.fileno() + 20, usual[1]))
    try:
        work.finish("completed")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert len(site.answers()[0]) == LINES // 2


@given(st.binary(max_size=200), st.integers(0, 200))
def test_corrupt_entries_are_ignored(garbage: bytes, place: int) -> None:
    """After a power failure a file system can return anything that was not synced."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "segment-1-x"
        writer = SegmentWriter(path)
        writer.append([answer(0), answer(1)])
        writer.close()
        whole = path.read_bytes()
        path.write_bytes(whole + garbage)
        found = entry_locations([path])
        assert set(found) == {0, 1}
        cut = min(place, len(whole))
        path.write_bytes(whole[:cut] + garbage.replace(b"\n", b""))
        assert set(entry_locations([path])) <= {0, 1}


def test_a_segment_has_one_writer(tmp_path: Path) -> None:
    SegmentWriter(tmp_path / "segment-1-x")
    with pytest.raises(FileExistsError):
        SegmentWriter(tmp_path / "segment-1-x")


def test_segments_count_in_the_order_of_epochs(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    for epoch in ("10-a", "9-b", "9-a"):
        SegmentWriter(folder.segment(epoch))
    assert [path.name for path in folder.segments()] == ["segment-9-a", "segment-9-b", "segment-10-a"]


def test_a_tenant_s_room_is_bounded_and_what_expired_makes_room(tmp_path: Path) -> None:
    store = FileStore(tmp_path, Constants(max_tenant_bytes=1000))

    def add(size: int, expires_at: int | None) -> str:
        store.check_room("t", size)
        content = store.folder("t") / "content.tmp"
        content.write_bytes(b"x" * size)
        file = StoredFile(f"file-{new_id()}", size, 1, "f", "batch", expires_at)
        store.add("t", file, content)
        return file.id

    old = add(500, expires_at=2)
    with pytest.raises(ApiError, match="no file"):
        store.get("t", old)
    assert store.all("t", None, newest_first=True) == []
    kept = add(600, None)
    with pytest.raises(ApiError, match=r"500 more.*1000"):
        store.check_room("t", 500)
    store.check_room("another", 500)
    store.delete("t", kept)
    store.check_room("t", 500)


def test_content_of_a_failed_add_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path, Constants(max_tenant_bytes=1000))
    content = store.folder("t") / ".some.tmp"
    content.write_bytes(b"x" * 900)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="full"):
            store.add("t", StoredFile(f"file-{new_id()}", 900, 1, "f", "batch"), content)
    assert list(store.folder("t").iterdir()) == []
    killed = store.folder("t") / f"file-{new_id()}.data"  # by a process that was killed before it could add the record
    killed.write_bytes(b"x" * 900)
    with pytest.raises(ApiError):
        store.check_room("t", 900)
    os.utime(killed, (1, 1))
    store.check_room("t", 900)
    assert list(store.folder("t").iterdir()) == []
