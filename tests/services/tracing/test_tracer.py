"""Trace contexts, and what a server says that cannot trace."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.errors import SettingsError
from services.tracing import tracer
from services.tracing.tracer import check_tracing, is_traceparent, open_tracer, trace_id_of

HEX = "0123456789abcdef"


@given(st.text(HEX, min_size=32, max_size=32), st.text(HEX, min_size=16, max_size=16), st.text(HEX + "-g", max_size=3))
def test_a_context_has_the_form_of_the_header(trace: str, span: str, flags: str) -> None:
    context = f"00-{trace}-{span}-{flags}"
    valid = len(flags) == 2 and not set(flags) - set(HEX)
    assert is_traceparent(context) == valid
    assert trace_id_of(context) == trace
    assert not is_traceparent(context + "\n")


def test_a_server_without_the_exporter_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    check_tracing("http://localhost:4318/v1/traces")
    monkeypatch.setattr(tracer, "EXPORTER", "opentelemetry.exporter.not_there")
    check_tracing("")
    with pytest.raises(SettingsError, match="the extra 'otel'"):
        check_tracing("http://localhost:4318/v1/traces")


def test_without_an_endpoint_nothing_is_imported() -> None:
    """Of OpenTelemetry, in a process of its own."""
    code = (
        "import sys; from services.tracing import tracer, tenures; "
        "assert tracer.open_tracer('', 'scheduler') is None; print([m for m in sys.modules if 'opentelemetry' in m])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    assert open_tracer("", "scheduler") is None


def test_the_sampler_is_that_of_opentelemetrys_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    silent = open_tracer("http://127.0.0.1:9/v1/traces", "scheduler")
    assert silent is not None
    assert silent.start("llm_request", "", 1.0) is None
    assert silent.write("tenure", f"00-{'1' * 32}-{'2' * 16}-01", 1.0, 2.0) == ""
