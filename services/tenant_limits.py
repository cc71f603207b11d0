"""Settings about how much may be in the pool, of all tenants and of each."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings

from services.setting_types import Section

EARLIEST = -8  # the earliest class there is


class TenantLimits(BaseModel):
    """What a tenant is allowed, where that is other than for tenants that are not named. 0: as for those."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_waiting: int = Field(default=0, ge=0)
    max_waiting_tokens: int = Field(default=0, ge=0)
    max_streams: int = Field(default=0, ge=0)
    max_pool_bytes: int = Field(default=0, ge=0)
    max_stored: int = Field(default=0, ge=0)
    earliest_class: int | None = Field(default=None, ge=EARLIEST, le=0)


class BoundSettings(BaseSettings):
    """Part of `Settings`."""

    max_waiting: Annotated[
        int, Section.LIMITS, Field(ge=1, description="waiting sequences, above which submits get a 429")
    ] = 10_000
    max_waiting_tokens: Annotated[
        int, Field(ge=0, description="tokens of the prompts of waiting sequences, likewise; 0: no bound")
    ] = 20_000_000
    max_streams: Annotated[
        int, Field(ge=0, description="open requests that a client waits for, likewise; 0: no bound")
    ] = 20_000
    max_queue_wait: Annotated[
        float,
        Field(ge=0, description="seconds a request may be expected to wait for an engine, likewise; 0: any"),
    ] = 60.0
    max_pool_bytes: Annotated[int, Field(ge=1 << 20, description="bytes of requests in the pool, likewise")] = 1 << 30
    max_stored: Annotated[
        int, Field(ge=0, description="ended requests that stay readable; the oldest are forgotten; 0: no bound")
    ] = 100_000
    queue_timeout: Annotated[float, Field(ge=0, description="seconds a request may wait to begin; 0: any time")] = 0.0
    tenant_share: Annotated[
        float,
        Field(
            gt=0, le=1, description="part of each of these bounds that a tenant may take; with one tenant, all of it"
        ),
    ] = 0.5
    tenant_limits: Annotated[
        dict[str, TenantLimits],
        Field(description="bounds and earliest_class of tenants that have their own, by tenant, as JSON"),
    ] = {}
    earliest_class: Annotated[
        int | None,
        Section.SCHEDULING,
        Field(
            ge=EARLIEST,
            le=0,
            description="the earliest class a request may ask for, unless tenant_limits says so; "
            "none: 0 with order=priority and keys of several tenants, else -8",
        ),
    ] = None

    def earliest(self, tenant: str, guarded: bool) -> int:
        """The earliest class of this tenant; `guarded`: none before the default unless a setting says so."""
        named = self.tenant_limits.get(tenant, TenantLimits()).earliest_class
        if named is not None:
            return named
        if self.earliest_class is not None:
            return self.earliest_class
        return 0 if guarded else EARLIEST
