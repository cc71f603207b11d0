"""One server for all tests of the folder that start none of their own: the default model in float32, nothing mocked."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from load.server import OrcaServer

OPERATOR = "the-operator"  # who may add models


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrcaServer]:
    with OrcaServer(
        tmp_path_factory.mktemp("server"), "--dtype", "float32", "--gateways", "1", "--operator-api-key", OPERATOR
    ) as server:
        yield server
        assert server.end() == 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the complaints of the running servers to a failure, since their files are removed soon after."""
    report = yield
    if report.failed:
        report.sections += [(f"logs of {server.url}", server.complaints()) for server in OrcaServer.running]
    return report
