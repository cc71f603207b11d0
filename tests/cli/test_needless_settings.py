"""A setting that changes nothing is answered with a warning."""

from __future__ import annotations

from cli.serve import needless_warning
from services.settings.settings import Settings


def test_batch_invariance_cannot_be_switched_off() -> None:
    assert "batch_invariant=false changes nothing" in needless_warning(Settings(batch_invariant=False))
    assert not needless_warning(Settings())
    assert not needless_warning(Settings(batch_invariant=True))
