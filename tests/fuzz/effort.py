"""How many examples a test of this folder tries."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

USUAL = 100  # hypothesis' own number


def effort(examples: int) -> settings:
    """So many examples in `make test`; under hypothesis' profile `fuzz` as many times more as that profile says."""
    times = settings.default.max_examples / USUAL
    return settings(
        max_examples=max(1, round(examples * times)),
        derandomize=times <= 1,
        database=None,
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if times > 1 else [])],
        suppress_health_check=list(HealthCheck),
    )
