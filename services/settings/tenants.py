"""Settings that bound how much all tenants, and each of them, may have in the pool."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings

from services.settings.types import Section, Words

EARLIEST = -8  # the earliest class that exists


class TenantLimits(BaseModel):
    """The bounds of one tenant. A bound of 0 is the one of tenants that `tenant_limits` does not name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_waiting: int = Field(default=0, ge=0)
    max_waiting_tokens: int = Field(default=0, ge=0)
    max_streams: int = Field(default=0, ge=0)
    max_pool_bytes: int = Field(default=0, ge=0)
    max_stored: int = Field(default=0, ge=0)
    earliest_class: int | None = Field(default=None, ge=EARLIEST, le=0)


class BoundSettings(BaseSettings):
    """The part of `Settings` with bounds."""

    max_waiting: Annotated[
        int,
        Section.LIMITS,
        Field(ge=1, description="maximum number of waiting sequences; above it, a new request gets a 429"),
    ] = 10_000
    max_queue_wait: Annotated[
        float,
        Field(ge=0, description="maximum expected wait of a request for an engine in seconds, else a 429; 0: no bound"),
    ] = 60.0
    max_pool_bytes: Annotated[
        int, Field(ge=1 << 20, description="maximum bytes of requests in the pool, else a 429")
    ] = 1 << 30
    queue_timeout: Annotated[
        float, Field(ge=0, description="seconds for which a request may wait to start; 0: no limit")
    ] = 0.0
    tenant_limits: Annotated[
        dict[str, TenantLimits],
        Field(
            description="bounds and earliest_class of single tenants, by tenant, as JSON; each other tenant has, if "
            "there are several, half of each bound and, with order=priority, 0 as its earliest class, else -8"
        ),
    ] = {}
    metrics_tenants: Annotated[
        Words,
        Field(
            max_length=64,
            description="tenants with figures of their own in /metrics, which needs no key, separated by spaces or a "
            "JSON list; all others but 'default' are added up as 'other'",
        ),
    ] = []
