"""Settings of autoscaling: bounds and delays for the numbers of engines and gateways."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings

from services.settings.types import Section

DOWNSCALE = 30  # times `upscale_delay`: an engine that is removed too early costs a start


class AutoscalingSettings(BaseSettings):
    """The part of `Settings` about autoscaling."""

    max_engines: Annotated[
        int,
        Section.AUTOSCALING,
        Field(ge=0, description="maximum number of engines, of which `engines` start; 0: always `engines`"),
    ] = 0
    min_engines: Annotated[int, Field(ge=1, description="minimum number of engines, with max_engines")] = 1
    max_gateways: Annotated[
        int,
        Field(ge=0, description="maximum number of gateways; `gateways` is the minimum; 0: always `gateways`"),
    ] = 0
    upscale_delay: Annotated[
        float,
        Field(
            ge=0,
            description="seconds for which more must be needed before engines or gateways are added; they are removed "
            f"when less was needed for {DOWNSCALE} times as long",
        ),
    ] = 10.0

    def check_autoscaling(self, engines: int, gateways: int) -> None:
        """Raises ValueError if the bounds contradict each other or the numbers at the start."""
        if self.max_engines and not self.min_engines <= engines <= self.max_engines:
            raise ValueError(
                f"engines={engines} must be from min_engines={self.min_engines} to max_engines={self.max_engines}"
            )
        if self.min_engines > 1 and not self.max_engines:
            raise ValueError(f"min_engines={self.min_engines} needs max_engines; without it, set engines")
        if self.max_gateways and self.max_gateways < gateways:
            raise ValueError(f"max_gateways={self.max_gateways} is less than gateways={gateways}, the minimum")
