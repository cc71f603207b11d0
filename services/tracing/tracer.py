"""Tracer: writes spans, and exports them in a thread. The only module that imports OpenTelemetry."""

from __future__ import annotations

import importlib.util
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.errors import SettingsError

if TYPE_CHECKING:
    from opentelemetry.trace import Span

EXPORTER = "opentelemetry.exporter.otlp.proto.http"
FLUSH_TIME = 1.0  # seconds that the end of a process waits for the collector

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

Attributes = Mapping[str, str | int | float | Sequence[str]]


@dataclass(frozen=True, slots=True)
class Event:
    """An event within a span, at a Unix time in seconds."""

    name: str
    at: float


def check_tracing(endpoint: str) -> None:
    """Raises SettingsError if traces are on and the exporter is not installed."""
    if endpoint and not _installed():
        raise SettingsError("otlp_traces_endpoint: traces need the extra 'otel': pip install --editable '.[otel]'")


def _installed() -> bool:
    try:
        return importlib.util.find_spec(EXPORTER) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False


def open_tracer(endpoint: str, process: str) -> Tracer | None:
    """The tracer of this process, `gateway` or `scheduler`; None if `endpoint` is empty."""
    return Tracer(endpoint, process) if endpoint else None


def is_traceparent(text: str) -> bool:
    """Whether `text` has the form of the W3C header: version, trace, span and flags, in hexadecimal digits."""
    return _TRACEPARENT.fullmatch(text) is not None


def trace_id_of(context: str) -> str:
    """Return the id of the trace in a `traceparent`; empty for an empty one."""
    return context[3:35]


class Tracer:
    """Spans of one process. A context is a W3C `traceparent`; it is empty for what is not sampled.

    The sampler and the exporter's headers, timeout and queue are those of OpenTelemetry's own variables: OTEL_*.
    """

    def __init__(self, endpoint: str, process: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        name = os.environ.get("OTEL_SERVICE_NAME", "orca")
        resource = Resource.create({"service.name": name, "orca.process": process, "process.pid": os.getpid()})
        self._exporter = OTLPSpanExporter(endpoint=endpoint)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # it would wait for the collector
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("orca")

    def start(
        self,
        name: str,
        parent: str,
        at: float,
        attributes: Attributes | None = None,
        *,
        server: bool = False,
    ) -> OpenSpan | None:
        """A span that began at the Unix time `at`, below `parent` or, if that is empty, in a trace of its own; None if
        it is not sampled. `server`: it answers a call from outside."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        span = self._tracer.start_span(
            name,
            set_span_in_context(_remote(parent)) if parent else None,
            SpanKind.SERVER if server else SpanKind.INTERNAL,
            attributes,
            start_time=_nanos(at),
        )
        return OpenSpan(span) if span.is_recording() else None

    def write(
        self,
        name: str,
        parent: str,
        begin: float,
        end: float,
        attributes: Attributes | None = None,
        events: Sequence[Event] = (),
        error: str | None = None,
    ) -> str:
        """Write a span from its Unix times. Returns its context; empty if it is not sampled."""
        span = self.start(name, parent, begin, attributes)
        if span is None:
            return ""
        span.end(end, events=events, error=error)
        return span.context

    def close(self) -> None:
        """Export what is left, for at most `FLUSH_TIME` seconds. Blocks; call it in a thread."""
        flushing = threading.Thread(target=self._provider.force_flush, daemon=True)  # its own limit is not kept
        flushing.start()
        flushing.join(FLUSH_TIME)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class OpenSpan:
    """A sampled span that has not ended."""

    __slots__ = ("_span", "context")

    def __init__(self, span: Span) -> None:
        found = span.get_span_context()
        self._span = span
        self.context = f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}"

    def link(self, context: str) -> None:
        """Link the span to another trace that it belongs to."""
        self._span.add_link(_remote(context).get_span_context())

    def end(
        self, at: float, attributes: Attributes | None = None, events: Sequence[Event] = (), error: str | None = None
    ) -> None:
        """End the span at the Unix time `at`, in seconds. `error` says why it failed; empty: it did not."""
        from opentelemetry.trace import StatusCode

        for event in events:
            self._span.add_event(event.name, timestamp=_nanos(event.at))
        if attributes:
            self._span.set_attributes(attributes)
        if error is not None:
            self._span.set_status(StatusCode.ERROR, error)
        self._span.end(_nanos(at))


def unix_offset(now: float) -> float:
    """Return the seconds to add to a reading of a clock that shows `now`, to get the Unix time."""
    return time.time() - now


def _remote(context: str) -> Any:
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

    _, trace, span, flags = context.split("-")
    return NonRecordingSpan(SpanContext(int(trace, 16), int(span, 16), True, TraceFlags(int(flags, 16))))


def _nanos(at: float) -> int:
    return round(at * 1e9)
