"""One server for all of the folder that start none, with the default model in float32: everything real."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from load.server import OrcaServer


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrcaServer]:
    with OrcaServer(tmp_path_factory.mktemp("server"), "--dtype", "float32", "--gateways", "1") as server:
        yield server
        assert server.end() == 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With a failure comes what its servers complained about: their files are gone soon after."""
    report = yield
    if report.failed:
        report.sections += [(f"logs of {server.url}", server.complaints()) for server in OrcaServer.running]
    return report
