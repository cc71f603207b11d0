"""One `orca serve` per port and folder; the next one finds the cluster that a killed one left."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.supervisor import PortClaim
from services.errors import SettingsError


def test_a_second_claim_names_the_port(tmp_path: Path) -> None:
    with PortClaim(tmp_path, 8000), PortClaim(tmp_path, 8001), pytest.raises(SettingsError, match="port=8000"):
        PortClaim(tmp_path, 8000).__enter__()


def test_the_next_claim_finds_the_cluster_that_was_left(tmp_path: Path) -> None:
    with PortClaim(tmp_path / "new", 8000) as claim:
        assert claim.folder is None
        claim.folder = Path("/somewhere")
        claim.folder = Path("/there")
        assert claim.folder == Path("/there")
    with PortClaim(tmp_path / "new", 8000) as claim:
        assert claim.folder == Path("/there")
        claim.folder = None
    with PortClaim(tmp_path / "new", 8000) as claim:
        assert claim.folder is None
