"""One `orca serve` per port and folder: the next one finds the cluster that a killed one left, and other commands find
the servers that run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.cluster.environment import mark_of
from cli.port_claim import PortClaim, running_servers
from cli.server import find_url
from services.errors import SettingsError, UsageError
from services.settings.settings import Settings


def claim_of(folder: Path, port: int = 8000, **settings: str) -> PortClaim:
    return PortClaim(Settings(data_dir=folder, port=port, **settings))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes the folder of a cluster that has one process."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> Path:
        variable, _, value = mark_of(tmp_path / name).partition("=")
        processes.append(subprocess.Popen(["sleep", "60"], env=os.environ | {variable: value}))
        return tmp_path / name

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of this process' settings, which name nothing else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCA_PORT", raising=False)
    monkeypatch.setenv("ORCA_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def test_a_second_claim_names_the_port(tmp_path: Path) -> None:
    with claim_of(tmp_path), claim_of(tmp_path, 8001), pytest.raises(SettingsError, match="port=8000"):
        claim_of(tmp_path).__enter__()


def test_the_next_claim_finds_the_cluster_that_was_left(tmp_path: Path) -> None:
    with claim_of(tmp_path / "new") as claim:
        assert claim.folder is None
        claim.folder = Path("/somewhere")
        claim.folder = Path("/there")
        assert claim.folder == Path("/there")
    with claim_of(tmp_path / "new") as claim:
        assert claim.folder == Path("/there")
        claim.folder = None
    with claim_of(tmp_path / "new") as claim:
        assert claim.folder is None


def test_a_claim_without_a_url_names_a_folder_and_no_server(tmp_path: Path, cluster: Callable[[str], Path]) -> None:
    (tmp_path / "serve-8000").write_text(str(cluster("a")))
    with claim_of(tmp_path) as claim:
        assert claim.folder == tmp_path / "a"
    assert running_servers(tmp_path) == {}


def test_the_one_server_that_runs_is_found(data: Path, cluster: Callable[[str], Path]) -> None:
    assert find_url(None) == "http://127.0.0.1:8000"
    with claim_of(data, 8123, host="::1", ssl_certfile="c.pem") as claim, claim_of(data, 8124) as dead:
        dead.folder = data / "none of its processes lives"
        claim.folder = cluster("a")
        assert find_url(None) == "https://[::1]:8123"
        claim.folder = None
        assert find_url(None) == "http://127.0.0.1:8000"


def test_a_server_is_found_whose_orca_serve_was_killed(data: Path, cluster: Callable[[str], Path]) -> None:
    with claim_of(data, 8123) as claim:
        claim.folder = cluster("a")
    assert find_url(None) == "http://127.0.0.1:8123"


def test_a_url_wins_over_the_settings_over_the_server_that_runs(
    data: Path, cluster: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with claim_of(data, 8123) as claim:
        claim.folder = cluster("a")
        monkeypatch.setenv("ORCA_PORT", "8200")
        assert find_url(None) == "http://127.0.0.1:8200"
        assert find_url("http://a:1") == "http://a:1"


def test_several_servers_are_named(data: Path, cluster: Callable[[str], Path]) -> None:
    with claim_of(data, 8123) as one, claim_of(data, 8124) as other:
        one.folder, other.folder = cluster("a"), cluster("b")
        with pytest.raises(UsageError, match=r"http://127\.0\.0\.1:8123, http://127\.0\.0\.1:8124; .*--url"):
            find_url(None)
