"""A collector of spans: receives traces by OTLP over HTTP, as OpenTelemetry's own does, and keeps their spans."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span; times are Unix seconds, ids hexadecimal digits. `process` is the kind of the process that sent it."""

    trace: str
    id: str
    parent: str
    name: str
    begin: float
    end: float
    process: str
    pid: int
    attributes: dict[str, Any] = field(default_factory=dict)
    events: dict[str, float] = field(default_factory=dict)  # times by name; the first of each
    links: tuple[str, ...] = ()  # traces
    error: str = ""


class Collector:
    """Listens on a free port of this machine within `with`; `endpoint` is the URL for `--otlp-traces-endpoint`."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def _handler(collector) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector._add(spans_of(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _add(self, spans: list[ReceivedSpan]) -> None:
        with self._changed:
            self.spans += spans
            self._changed.notify_all()

    def until(self, names: list[str], trace: str, seconds: float = 20.0) -> list[ReceivedSpan]:
        """Wait until this trace has spans of all these names, as often as they are given; return its spans in the order
        of their beginnings. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: _contains(self.of(trace), names), seconds):
                raise TimeoutError(f"no {names} after {seconds} s, only {[span.name for span in self.spans]}")
            return self.of(trace)

    def of(self, trace: str) -> list[ReceivedSpan]:
        return sorted((span for span in self.spans if span.trace == trace), key=lambda span: span.begin)


def _contains(spans: list[ReceivedSpan], names: list[str]) -> bool:
    found = [span.name for span in spans]
    return all(found.count(name) >= names.count(name) for name in names)


def spans_of(body: bytes) -> list[ReceivedSpan]:
    """The spans of an export, in protobuf without compression."""
    spans = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        process = _values(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                events: dict[str, float] = {}
                for event in span.events:
                    events.setdefault(event.name, event.time_unix_nano / 1e9)
                spans.append(
                    ReceivedSpan(
                        trace=span.trace_id.hex(),
                        id=span.span_id.hex(),
                        parent=span.parent_span_id.hex(),
                        name=span.name,
                        begin=span.start_time_unix_nano / 1e9,
                        end=span.end_time_unix_nano / 1e9,
                        process=process["orca.process"],
                        pid=process["process.pid"],
                        attributes=_values(span.attributes),
                        events=events,
                        links=tuple(link.trace_id.hex() for link in span.links),
                        error=span.status.message,
                    )
                )
    return spans


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
