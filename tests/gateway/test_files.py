"""Files with the official client: a download equals the upload, and an incomplete upload leaves nothing."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import openai_document
import pytest
from stack import Stack
from waiting import wait_until

from gateway.files import store


def test_a_download_equals_the_upload(alice: openai.OpenAI, served: Stack) -> None:
    content = bytes(range(256)) * 1000
    file = alice.files.create(
        file=("some name.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (file.bytes, file.filename, file.purpose, file.status) == (
        len(content),
        "some name.jsonl",
        "batch",
        "processed",
    )
    assert file.expires_at == file.created_at + 3600
    assert alice.files.retrieve(file.id) == file
    assert alice.files.content(file.id).content == content
    raw = httpx.get(f"{served.url}/v1/files/{file.id}", headers={"Authorization": "Bearer key-of-alice"}).json()
    openai_document.check("OpenAIFile", raw)
    assert alice.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        alice.files.retrieve(file.id)


def test_files_are_listed_in_pages(bob: openai.OpenAI) -> None:
    made = [bob.files.create(file=(f"{i}.jsonl", b"x"), purpose="batch").id for i in range(5)]
    assert [file.id for file in bob.files.list(limit=2)] == made[::-1]
    assert [file.id for file in bob.files.list(order="asc", limit=2)] == made
    assert [file.id for file in bob.files.list(purpose="batch_output")] == []
    bob.files.delete(made[2])
    assert [file.id for file in bob.files.list(after=made[2])] == made[1::-1]


@pytest.mark.parametrize("after", ["", "x", "file-1", "batch_" + "0" * 32, "file-" + "g" * 32])
def test_a_page_after_what_is_no_id_of_the_list_is_refused(bob: openai.OpenAI, after: str) -> None:
    for listed in (bob.files, bob.batches):
        with pytest.raises(openai.BadRequestError) as raised:
            listed.list(after=after if listed is bob.files else after.replace("batch_", "file-"))
        assert raised.value.param == "after"


def test_a_tenant_has_so_many_files_at_most(alice: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    first = alice.files.create(file=("a", b"x"), purpose="batch")
    most = len(list(alice.files.list()))
    monkeypatch.setattr(store, "MAX_FILES", most)
    with pytest.raises(openai.RateLimitError, match=f"keeps {most} "):
        alice.files.create(file=("b", b"x"), purpose="batch")
    with pytest.raises(openai.RateLimitError, match=f"keeps {most} "):
        alice.batches.create(input_file_id=first.id, endpoint="/v1/completions", completion_window="24h")
    alice.files.delete(first.id)
    alice.files.delete(alice.files.create(file=("a", b"x"), purpose="batch").id)


def test_a_list_reads_no_record_again(bob: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [bob.files.create(file=(f"{i}.jsonl", b"x"), purpose="batch").id for i in range(3)]
    bob.files.list()
    read: list[Path] = []
    of = store._read
    monkeypatch.setattr(store, "_read", lambda path: (read.append(path), of(path))[1])
    assert [file.id for file in bob.files.list(limit=3)][:3] == made[::-1]
    later = bob.files.create(file=("later", b"x"), purpose="batch").id
    assert next(iter(bob.files.list())).id == later
    assert [path.stem for path in read] == [later]


def test_bounds_of_files(alice: openai.OpenAI, served: Stack) -> None:
    with pytest.raises(openai.APIStatusError, match="300000") as error:
        alice.files.create(file=("a", b"x" * 300_001), purpose="batch")
    assert error.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="purpose"):
        alice.files.create(file=("a", b"x"), purpose="vision")
    headers = {"Authorization": "Bearer key-of-alice"}
    for sent in ({"content": b"x"}, {"data": {"purpose": "batch"}}, {"files": {"file": b"x"}}):
        assert httpx.post(served.url + "/v1/files", headers=headers, **sent).status_code == 400  # type: ignore[arg-type]
    assert left_over(served) == []


def left_over(served: Stack) -> list[Path]:
    return list(Path(served.settings.files_dir).rglob("*.tmp"))


PART = '--b\r\nContent-Disposition: form-data; name="{}"{}\r\n\r\n{}\r\n'
PURPOSE, FILE = PART.format("purpose", "", "batch"), PART.format("file", '; filename="a"', "x")
BODIES_NOT_WHOLE = {
    "no end": PURPOSE + FILE,
    "cut in the file": PURPOSE + FILE[:-4],
    "no parts": "--b--\r\n",
    "no name": PURPOSE + FILE.replace('name="file"; ', "") + "--b--\r\n",
    "two files": PURPOSE + FILE + FILE + "--b--\r\n",
    "unknown part": PURPOSE + FILE + PART.format("other", "", "x") + "--b--\r\n",
    "endless field": PART.format("purpose", "", "batch" * 1000) + FILE + "--b--\r\n",
    "garbage": "nothing of the kind",
    "empty": "",
}


@pytest.mark.parametrize("name", BODIES_NOT_WHOLE)
def test_an_incomplete_upload_leaves_nothing(
    alice: openai.OpenAI, served: Stack, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    before = {file.id for file in alice.files.list()}
    headers = {"Authorization": "Bearer key-of-alice", "Content-Type": "multipart/form-data; boundary=b"}
    sent = httpx.post(served.url + "/v1/files", headers=headers, content=BODIES_NOT_WHOLE[name].encode())
    assert sent.status_code == 400
    assert sent.json()["error"]["type"] == "invalid_request_error"
    assert [record.message for record in caplog.records if record.name.startswith("python_multipart")] == []
    assert {file.id for file in alice.files.list()} == before
    assert left_over(served) == []


def test_an_invalid_boundary_is_a_client_error(served: Stack) -> None:
    boundary = "b" * 300
    headers = {"Authorization": "Bearer key-of-alice", "Content-Type": f"multipart/form-data; boundary={boundary}"}
    sent = httpx.post(served.url + "/v1/files", headers=headers, content=f"--{boundary}--".encode())
    assert sent.status_code == 400
    assert "300" in sent.json()["error"]["message"]
    assert left_over(served) == []


def test_an_upload_is_bounded_after_its_end_too(alice: openai.OpenAI, served: Stack) -> None:
    """The body has no content length: it is sent in chunks."""
    before = {file.id for file in alice.files.list()}
    headers = {"Authorization": "Bearer key-of-alice", "Content-Type": "multipart/form-data; boundary=b"}
    body = [(PURPOSE + FILE + "--b--\r\n").encode(), *[b"x" * 100_000] * 4]
    sent = httpx.post(served.url + "/v1/files", headers=headers, content=iter(body))
    assert sent.status_code == 413
    assert {file.id for file in alice.files.list()} == before
    assert left_over(served) == []


def test_a_blocked_disk_does_not_delay_prompts(served: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """More uploads wait for it than the loop has threads; a long prompt is tokenized in one of these."""
    count, goes_on, standing = (os.cpu_count() or 1) + 6, threading.Event(), threading.Semaphore(0)

    def stand(_: int) -> None:
        standing.release()
        goes_on.wait(60)

    headers = {"Authorization": "Bearer key-of-alice"}

    def upload(_: int) -> int:
        files, fields = {"file": ("a", b"x")}, {"purpose": "batch"}
        return httpx.post(served.url + "/v1/files", headers=headers, files=files, data=fields, timeout=90).status_code

    with ThreadPoolExecutor(count) as uploads:
        monkeypatch.setattr("os.fsync", stand)
        sent = uploads.map(upload, range(count))
        try:
            for _ in range(4):
                assert standing.acquire(timeout=20)
            asked = {"model": "tiny", "prompt": "a " * 2000}
            assert httpx.post(served.url + "/tokenize", headers=headers, json=asked, timeout=20).status_code == 200
        finally:
            goes_on.set()
        assert set(sent) == {200}


def test_a_client_that_disconnects_during_an_upload_leaves_nothing(served: Stack) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key-of-alice\r\n"
        head += "Content-Length: 9999\r\nContent-Type: multipart/form-data; boundary=b\r\n\r\n"
        connection.sendall(f"{head}{PURPOSE}{FILE}".encode())
        wait_until(lambda: left_over(served) != [])
    wait_until(lambda: left_over(served) == [])
