"""Settings of logs and traces."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings

from services.settings.types import Section


def _collector(url: str) -> str:
    if url and not url.startswith(("http://", "https://")):
        raise ValueError("is not the URL of a collector that takes OTLP over HTTP, as http://localhost:4318/v1/traces")
    return url


class ObservabilitySettings(BaseSettings):
    """The part of `Settings` about logs and traces."""

    log_format: Annotated[
        Literal["text", "json"],
        Section.OBSERVABILITY,
        Field(description="format of the processes' logs; json: one object per line, with ids of requests and traces"),
    ] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Field(description="the least level of Orca's messages in the logs"),
    ] = "info"
    enable_log_requests: Annotated[
        bool,
        Field(description="log a line at the end of each request: its tokens, its times and how it ended, no text"),
    ] = False
    otlp_traces_endpoint: Annotated[
        str,
        AfterValidator(_collector),
        Field(description="URL to which OpenTelemetry traces are sent, by OTLP over HTTP; empty: no traces"),
    ] = ""
