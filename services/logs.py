"""Logs of our processes: text, or one JSON object per line with the ids of the request that a message is about."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from services.settings.settings import Settings

PACKAGES = ("actors", "cli", "gateway", "services")
TEXT = "%(levelname)s %(asctime)s %(process_kind)s %(process)d %(name)s -- %(message)s"


@dataclass(slots=True)
class RequestContext:
    """The HTTP request that the running task handles."""

    x_request_id: str = ""  # of the client or the proxy
    traceparent: str = ""  # of the client
    request_id: str = ""  # in the pool, as soon as it is known
    trace_id: str = ""  # of its trace, if it is traced


REQUEST: ContextVar[RequestContext | None] = ContextVar("request", default=None)


class ProcessFilter(logging.Filter):
    """Adds to each record what is the same for all records of this process for now, and what the task handles."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process
        self.fields: dict[str, str] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        record.process_kind = self.process
        context = REQUEST.get()
        about = {} if context is None else {k: v for k in _IDS if (v := getattr(context, k))}
        record.fields = self.fields | about | getattr(record, "fields", {})
        return True


_IDS = ("request_id", "x_request_id", "trace_id")


class JsonFormatter(logging.Formatter):
    """One JSON object per record: `ts` (UTC), `level`, `logger`, `process`, `pid`, `message`, `exception`, and the
    record's `fields`, such as `request_id`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": getattr(record, "process_kind", ""),
            "pid": record.process,
            "message": record.getMessage(),
        }
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


_this_process = ProcessFilter("")


def configure(settings: Settings, process: str, **fields: str) -> None:
    """Write the messages of this process to its standard error, in the format of the settings. `process` is its kind:
    supervisor, cluster, gateway, scheduler or engine; `fields` are parts of each of its messages.

    Other packages write warnings at least. Ray Serve replaces `sys.stderr` of its replicas, so the original one is
    used.
    """
    _this_process.process, _this_process.fields = process, fields
    handler = logging.StreamHandler(sys.__stderr__)
    handler.addFilter(_this_process)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else logging.Formatter(TEXT))
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))
    for name in PACKAGES:
        logging.getLogger(name).setLevel(level)
    if settings.log_format == "json":  # Ray's messages in this process are of the same format
        ray = logging.getLogger("ray")
        ray.handlers.clear()
        ray.propagate = True


def describe(**fields: str) -> None:
    """Set parts of all further messages of this process, as the seat that it owns; empty ones are removed."""
    _this_process.fields = {k: v for k, v in (_this_process.fields | fields).items() if v}


def about(*requests: str, **fields: Any) -> dict[str, Any]:
    """The argument `extra` of a message about these requests: `log.info(..., extra=about(id))`."""
    if len(requests) == 1:
        fields["request_id"] = requests[0]
    elif requests:
        fields["request_ids"] = list(requests)
    return {"fields": fields}
