"""A setting that changes nothing is answered with a warning."""

from __future__ import annotations

from cli.serve import needless_warning, unready_models
from services.settings.settings import Settings


def test_batch_invariance_cannot_be_switched_off() -> None:
    assert "batch_invariant=false changes nothing" in needless_warning(Settings(batch_invariant=False))
    assert not needless_warning(Settings())
    assert not needless_warning(Settings(batch_invariant=True))


def test_a_server_of_several_models_waits_for_those_that_no_request_wakes_up() -> None:
    """It says that it is ready when all can answer."""
    assert unready_models("shard 1: No engine is ready.") == []
    assert unready_models("model a: asleep\nmodel b, shard 1: cold") == []
    assert unready_models("model a: off\nmodel b: No engine is ready.") == ["model b: No engine is ready."]
