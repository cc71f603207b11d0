"""An upload: a multipart body whose file is written to disk as it arrives."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from gateway.errors import ApiError, ClientGone, Kind
from gateway.files import disk
from gateway.files.store import FileStore, StoredFile, new_id
from gateway.http.headers import check_encoding, content_length

MAX_FIELD_BYTES = 4096  # of a part other than the file, and of a part's headers
MAX_FIELDS = 16
MIN_LIFE, MAX_LIFE = 3600, 2_592_000  # seconds, OpenAI's bounds of `expires_after`
_KNOWN = {"purpose", "expires_after[anchor]", "expires_after[seconds]"}

# the answer says what is wrong with a body; with a warning for each, clients could fill the log
logging.getLogger("python_multipart").setLevel(logging.ERROR)


async def receive(request: Request, store: FileStore, tenant: str) -> StoredFile:
    """Store the uploaded file. Raises ApiError naming the field, its value and the limit."""
    check_encoding(request.headers)
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or b"boundary" not in options:
        raise ApiError(Kind.INVALID, "A file is sent as multipart/form-data, with the parts 'file' and 'purpose'.")
    size = content_length(request)
    if size > _max_body_bytes(store):
        raise _too_large(store.max_file_bytes)
    await disk.in_thread(store.check_room, tenant, size)
    id = "file-" + new_id()
    content = disk.temporary(store.folder(tenant) / f"{id}.data")
    try:
        with content.open("xb") as file:
            try:
                form = _Form(file, options[b"boundary"], store.max_file_bytes)
            except FormParserError as error:
                raise _invalid(error) from None
            await _read(request, form, store)
            await disk.in_thread(form.end)
        return await disk.in_thread(_store, store, tenant, id, form, content)
    finally:
        content.unlink(missing_ok=True)


async def _read(request: Request, form: _Form, store: FileStore) -> None:
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > _max_body_bytes(store):  # in headers or after the last boundary; parts have their own limits
                raise _too_large(store.max_file_bytes)
            if chunk:
                await disk.in_thread(form.feed, chunk)
    except ClientDisconnect:
        raise ClientGone from None


def _store(store: FileStore, tenant: str, id: str, form: _Form, content: Path) -> StoredFile:
    purpose = form.fields.get("purpose")
    if form.filename is None:
        raise ApiError(Kind.INVALID, "Missing required parameter: 'file'.", "file")
    if purpose is None:
        raise ApiError(Kind.INVALID, "Missing required parameter: 'purpose'.", "purpose")
    if purpose != "batch":
        text = f"Invalid 'purpose': this server takes files for 'batch' alone (got '{purpose[:50]}')."
        raise ApiError(Kind.UNSUPPORTED, text, "purpose")
    created = int(time.time())
    life = _life(form.fields)
    store.check_room(tenant, 0)  # the content is already there, in a temporary file
    file = StoredFile(id, form.size, created, form.filename, "batch", created + life if life else None)
    store.add(tenant, file, content)
    return file


def _life(fields: dict[str, str]) -> int | None:
    """The seconds of `expires_after`; None without it."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise ApiError(Kind.INVALID, "Invalid 'expires_after[anchor]': must be 'created_at'.", "expires_after")
    number = int(seconds) if seconds and seconds.isascii() and seconds.isdigit() and len(seconds) < 10 else 0
    if not MIN_LIFE <= number <= MAX_LIFE:
        got = (seconds or "nothing")[:20]
        text = f"Invalid 'expires_after[seconds]': must be {MIN_LIFE} to {MAX_LIFE} (got {got})."
        raise ApiError(Kind.INVALID, text, "expires_after")
    return number


def _invalid(error: FormParserError) -> ApiError:
    return ApiError(Kind.INVALID, f"The body is not valid multipart/form-data: {error}")


def _max_body_bytes(store: FileStore) -> int:
    return store.max_file_bytes + MAX_FIELDS * MAX_FIELD_BYTES


def _too_large(limit: int) -> ApiError:
    return ApiError(Kind.BODY_TOO_LARGE, f"The file is longer than the {limit} bytes this server takes.", "file")


class _Form:
    """Parses the body in chunks. The part `file` is written to `file`, the other parts go into `fields`."""

    def __init__(self, file: BinaryIO, boundary: bytes, max_bytes: int) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.size = 0
        self._file = file
        self._max_bytes = max_bytes
        self._header, self._value, self._field = b"", b"", b""
        self._disposition = b""
        self._name: str | None = None
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_end": self._on_end,
            },
        )

    def feed(self, chunk: bytes) -> None:
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _invalid(error) from None

    def end(self) -> None:
        """Make the file durable, after the last chunk."""
        if not self._ended:
            raise ApiError(Kind.INVALID, "The multipart body ends before its last boundary.")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _on_part_begin(self) -> None:
        self._name, self._field, self._disposition = None, b"", b""
        self._header, self._value = b"", b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header = _within(self._header + data[start:end])

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value = _within(self._value + data[start:end])

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header, self._value = b"", b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = self._name = options.get(b"name", b"").decode(errors="replace")
        if name == "file":
            if self.filename is not None:
                raise ApiError(Kind.INVALID, "There are two parts 'file', one is accepted.", "file")
            self.filename = options.get(b"filename", b"file.jsonl").decode(errors="replace")
        elif name not in _KNOWN or name in self.fields or len(self.fields) >= MAX_FIELDS:
            raise ApiError(Kind.UNSUPPORTED, f"Unknown parameter: {name[:64]}.", name[:64])

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name != "file":
            self._field = _within(self._field + data[start:end])
            return
        self.size += end - start
        if self.size > self._max_bytes:
            raise _too_large(self._max_bytes)
        self._file.write(memoryview(data)[start:end])

    def _on_part_end(self) -> None:
        if self._name and self._name != "file":
            self.fields[self._name] = self._field.decode(errors="replace")

    def _on_end(self) -> None:
        self._ended = True


def _within(data: bytes) -> bytes:
    if len(data) > MAX_FIELD_BYTES:
        raise ApiError(
            Kind.INVALID, f"A part other than the file has more than the maximum of {MAX_FIELD_BYTES} bytes."
        )
    return data
