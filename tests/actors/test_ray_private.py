"""What Orca uses of Ray's private code is where it was. Each test names what another version of Ray has moved.

The real cluster of `tests/cli` and the real HAProxy of `test_haproxy.py` show that the parts work together.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import ray
from haproxy_process import serve_config

from actors import ray_private
from actors.cluster.environment import SERVE_MODE, haproxy_environment, prepared_environment
from actors.haproxy import BINARY_PATH, patch_config
from load.server import ROOT, free_port
from services.settings.settings import Settings

PRIVATE = {  # the parameters, of functions
    "ray._private.node.Node": None,
    "ray._private.node.Node.start_api_server": ["self", "include_dashboard", "raise_on_failure"],
    "ray._private.node.Node.start_raylet": None,
    "ray._private.node.Node.kill_gcs_server": ["self", "check_alive"],
    "ray._private.node.Node.start_gcs_server": ["self"],
    "ray._private.ray_constants.PROCESS_TYPE_GCS_SERVER": None,
    "ray._private.services.start_ray_process": None,
    "ray._private.worker._global_node": None,
    "ray._raylet.persist_port": None,
    **{f"ray._raylet.{port}_PORT_NAME": None for port in ray_private.PORTS},
    "ray._common.tls_utils.add_port_to_grpc_server": ["server", "address"],
    "ray.serve._private.replica.add_port_to_grpc_server": ["server", "address"],
    "ray.serve._private.common.DeploymentID": None,
    "ray.serve._private.constants.SERVE_CONTROLLER_NAME": None,
    "ray.serve._private.constants.SERVE_NAMESPACE": None,
    "ray.serve._private.exceptions.ExternalScalerDisabledError": None,
    "ray.serve._private.controller.CONTROL_LOOP_INTERVAL_S": None,
    "ray.serve._private.controller.ServeController.update_deployment_replicas": [
        "self",
        "deployment_id",
        "target_num_replicas",
    ],
}


def test_this_is_the_version_that_was_tried() -> None:
    found = ray.__version__
    moved = f"Ray is {found}, its private code was last tried with {ray_private.VERSION}: run this file, the tests of"
    assert found == ray_private.VERSION, f"{moved} HAProxy and those of tests/cli, then set ray_private.VERSION"


@pytest.mark.parametrize("path", PRIVATE)
def test_ray_still_has(path: str) -> None:
    parts = path.split(".")
    module = next(m for end in range(len(parts), 0, -1) if (m := _imported(".".join(parts[:end]))))
    found = module
    for part in parts[len(module.__name__.split(".")) :]:
        assert hasattr(found, part), f"Ray {ray.__version__} has moved {path}"
        found = getattr(found, part)
    if expected := PRIVATE[path]:
        assert list(inspect.signature(found).parameters) == expected, f"Ray {ray.__version__} has changed {path}"


def _imported(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def test_the_raylets_command_still_names_its_agents() -> None:
    source = inspect.getsource(ray._private.services.start_raylet)
    assert [agent for agent in ray_private.AGENTS if f"{agent}=" not in source] == []


def test_ray_still_reads_the_variables_of_a_cluster(tmp_path: Path) -> None:
    """A variable that Ray does not know has no effect, and nothing says so."""
    package = Path(ray.__file__).parent
    sources = "".join(file.read_text() for file in sorted(package.glob("serve/_private/*.py")))
    sources += (package / "_private/ray_constants.py").read_text() + (package / "_private/worker.py").read_text()
    sources += (package / "_common/usage/usage_constants.py").read_text()
    raylet, gcs = ((package / f"core/src/ray/{name}").read_bytes() for name in ("raylet/raylet", "gcs/gcs_server"))

    def is_read(name: str) -> bool:
        own = name.removeprefix("RAY_").encode() + b"\0"
        return f'"{name}"' in sources or own in raylet or own in gcs

    environment, guard = prepared_environment(tmp_path, Settings(), 1000)
    guard.close()
    names = [name for name in environment if name.startswith("RAY_")]
    assert set(names) > set(SERVE_MODE)
    assert [name for name in names if not is_read(name)] == []


def test_serves_configuration_of_haproxy_still_has_the_lines_that_are_changed(tmp_path: Path) -> None:
    serve_config(tmp_path, free_port(), free_port(), 2000)
    assert "Retry-After" in patch_config((tmp_path / "haproxy.cfg").read_text(), tmp_path)
    assert BINARY_PATH in haproxy_environment(tmp_path)


def test_no_other_module_uses_what_is_private() -> None:
    others = {}
    for folder in ("actors", "cli", "gateway", "load", "services"):
        for file in (ROOT / folder).rglob("*.py"):
            found = [name for name in _imports(file) if re.match(r"ray\..*(\._|\bgenerated\b|_internal_)", name)]
            if found and file != Path(ray_private.__file__):
                others[file.relative_to(ROOT).as_posix()] = found
    assert others == {}


def _imports(file: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_the_stand_in_of_an_agent_lives_until_its_input_is_closed() -> None:
    """Ray appends arguments of the agent to the command."""
    process = subprocess.Popen([*shlex.split(ray_private.STAND_IN), "--head"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"x" * 100_000)  # nobody reads what it writes
    process.stdin.flush()
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(10) == 0
