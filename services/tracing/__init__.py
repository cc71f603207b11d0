"""OpenTelemetry traces: where a request was, from its arrival at a gateway through the pool, schedulers and engines.

A gateway starts the trace of a request, or continues its client's. The trace context travels with the request through
the pool, so every scheduler that claims the request adds its spans, also after a takeover. Spans are made at the end of
a request or of a scheduler's time with it, and a thread exports them; those that the collector does not take are lost.
OpenTelemetry is imported only if traces are on.
"""
