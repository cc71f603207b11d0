"""A server runs on the dependencies of a server: what benchmarks and tests need stands in the extras."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import grimp
import pytest
from packaging.requirements import Requirement

from tests.packaging.conftest import PACKAGES, PROJECT

SERVER = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
# torch for CUDA requires it; that for CPUs does not, and its kernels are imported on GPUs alone
OF_OTHER_BUILDS = {"triton"}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, include_external_packages=True)


def installed_with(requirements: Iterable[str]) -> set[str]:
    """The distributions that `pip install` of `requirements` brings, with those that they require in turn."""
    found: set[tuple[str, str]] = set()
    queue = list(_wanted(requirements, ""))
    while queue:
        pair = queue.pop()
        if pair not in found:
            found.add(pair)
            queue += _wanted(_requirements_of(pair[0]), pair[1])
    return {name for name, _ in found}


def _requirements_of(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []  # of another platform


def _wanted(requirements: Iterable[str], extra: str) -> Iterator[tuple[str, str]]:
    """Pairs (name, one of its extras or "") of the requirements that apply here and to `extra`."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            for wanted in ("", *requirement.extras):
                yield _normalized(requirement.name), wanted


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def missing(graph: grimp.ImportGraph, modules: Iterable[str], requirements: Iterable[str]) -> dict[str, set[str]]:
    """By module: the third-party packages that it imports and `requirements` do not bring."""
    distributions, brought = packages_distributions(), installed_with(requirements)
    found: dict[str, set[str]] = {}
    for module in modules:
        for imported in graph.find_modules_directly_imported_by(module):
            names = {_normalized(name) for name in distributions.get(imported, ())}
            if graph.is_module_squashed(imported) and names - OF_OTHER_BUILDS and not names & brought:
                found.setdefault(module, set()).add(imported)
    return found


def of(graph: grimp.ImportGraph, *packages: str) -> set[str]:
    return {module for module in graph.modules if module.split(".")[0] in packages}


def test_a_server_imports_its_own_dependencies(graph: grimp.ImportGraph) -> None:
    """Its modules, and all others of the tree that they import."""
    server = of(graph, *PACKAGES) - of(graph, "load")
    reached = server.union(*map(graph.find_upstream_modules, server))
    assert missing(graph, reached & of(graph, *PACKAGES), SERVER) == {}


def test_load_imports_what_the_extra_bench_brings(graph: grimp.ImportGraph) -> None:
    load = of(graph, "load")
    assert missing(graph, load, [*SERVER, *EXTRAS["bench"]]) == {}
    assert set().union(*missing(graph, load, SERVER).values()) >= {"locust", "matplotlib"}


def test_the_locustfile_runs_where_only_locust_and_orjson_are_installed(graph: grimp.ImportGraph) -> None:
    reached = graph.find_upstream_modules("load.locustfile") | {"load.locustfile"}
    assert missing(graph, of(graph, *PACKAGES) & reached, ["locust", "orjson"]) == {}


def test_a_server_is_installed_without_benchmarks_and_tests() -> None:
    assert installed_with(SERVER) & {"locust", "matplotlib", "gevent", "pytest", "hypothesis", "mypy"} == set()
