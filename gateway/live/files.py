"""PageFiles: the files of the live page, held in memory, with headers that let a browser load nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from starlette.responses import Response

from gateway.errors import ApiError, Kind

INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".txt": "text/plain; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'{demo}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
DEMO = " http://127.0.0.1:*"  # with --demo, the supervisor listens there, on a port that the gateway does not know


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    type: str
    tag: str  # a hash of the content, which a browser sends to ask whether it has changed


class PageFiles:
    """The files of the folder `page`, read once."""

    def __init__(self, demo: bool) -> None:
        found = [path for path in (resources.files("gateway.live") / "page").iterdir() if path.is_file()]
        self._files = {path.name: _file(path.name, path.read_bytes()) for path in found}
        self._headers = {
            "Content-Security-Policy": POLICY.format(demo=DEMO if demo else ""),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-cache",
        }

    def response(self, name: str, known: str) -> Response:
        """The file `name`, or a 304 if `known`, the value of `If-None-Match`, names its content. Raises ApiError."""
        file = self._files.get(name)
        if file is None:
            raise ApiError(Kind.NOT_FOUND, f"There is no file '{name[:100]}'.")
        headers = self._headers | {"ETag": file.tag}
        if file.tag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.type)


def _file(name: str, content: bytes) -> _File:
    suffix = name[name.rfind(".") :]
    return _File(content, TYPES[suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
