"""`make schemas` brings the documents that the tests were written with."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests import schemas


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A site with one document, `a.json`, which is pinned to its content."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/a.json").write_bytes(b"{}")
    monkeypatch.setattr(schemas, "DOCUMENTS", {"mine.json": ("a.json", hashlib.sha256(b"{}").hexdigest())})
    return (tmp_path / "site").as_uri()


def test_documents_are_found_where_they_were_downloaded_to(
    tmp_path: Path, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schemas.download(tmp_path / "folder", site)
    monkeypatch.setenv("ORCA_SCHEMAS", str(tmp_path / "folder"))
    assert schemas.document("mine.json").read_bytes() == b"{}"


def test_another_document_than_the_pinned_one_is_refused(tmp_path: Path, site: str) -> None:
    (tmp_path / "site/a.json").write_bytes(b"[]")
    with pytest.raises(ValueError, match="has the SHA-256"):
        schemas.download(tmp_path / "folder", site)
    assert not (tmp_path / "folder/mine.json").exists()


@pytest.mark.parametrize("name", schemas.DOCUMENTS)
def test_the_document_at_hand_is_the_pinned_one(name: str) -> None:
    assert hashlib.sha256(schemas.document(name).read_bytes()).hexdigest() == schemas.DOCUMENTS[name][1]
