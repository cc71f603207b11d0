"""The wheel in an environment of its own, away from the sources: `orca serve` works in any folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
import venv
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from actors.cluster.environment import free_ports
from actors.cluster.processes import end_processes_of
from tests.packaging.conftest import PROJECT, ROOT
from tests.tiny_models import make_tiny_model

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(300)]

PATIENCE = 120.0  # seconds


class Environment:
    """A virtual environment with the wheel. Its other packages are those of the environment that runs the tests.

    A `.pth` file names their folder, which does not make the editable installation there visible: Python reads no
    `.pth` files in a folder that one of them names.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv.create(folder)
        self.bin = folder / "bin"
        (packages,) = folder.glob("lib/python*/site-packages")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self.bin / "python")]
        subprocess.run([*pip, "install", "--no-deps", "--no-index", "--quiet", str(wheel)], check=True)
        (packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith(("ORCA_", "RAY_", "PYTHON"))}

    def output(self, folder: Path, *command: str) -> str:
        """What a program of the environment prints when it runs in `folder`; fails when the program does."""
        program = [str(self.bin / command[0]), *command[1:]]
        done = subprocess.run(
            program, cwd=folder, env=self.variables, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"), wheel)


@pytest.fixture(scope="module", params=["null engine", "engine"])
def url(
    request: pytest.FixtureRequest, installed: Environment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server with the null engine and the default model's tokenizer, and one with a tiny model."""
    folder = tmp_path_factory.mktemp("anywhere")
    null = request.param == "null engine"
    model = ["--null-engine"] if null else ["--model", str(make_tiny_model(tmp_path_factory.mktemp("model")))]
    port = free_ports(1)
    command = [str(installed.bin / "orca"), "serve", "--port", str(port), "--data-dir", str(folder), "--gateways", "1"]
    process = subprocess.Popen(
        [*command, *model],
        cwd=folder,
        env=installed.variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    end = threading.Timer(PATIENCE, process.kill)  # then its output ends
    end.start()
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if "ready at" in line:
                break
        else:
            pytest.fail("orca serve is not ready:\n" + "".join(said))
        end.cancel()
        yield f"http://127.0.0.1:{port}"
    finally:
        end.cancel()
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            if (claim := folder / f"serve-{port}").exists() and (lines := claim.read_text().splitlines()):
                end_processes_of(Path(lines[0]))


def test_the_sources_are_not_beside_it(installed: Environment, tmp_path: Path) -> None:
    files = installed.output(tmp_path, "python", "-c", "import services, load; print(services.__file__, load.__file__)")
    assert str(installed.bin.parent) in files
    assert str(ROOT) not in files


def test_the_program_says_its_version(installed: Environment, tmp_path: Path) -> None:
    assert installed.output(tmp_path, "orca", "--version") == f"orca {PROJECT['project']['version']}\n"


def test_locust_finds_its_modules_beside_a_copy_of_its_file(installed: Environment, tmp_path: Path) -> None:
    """As in the image of Locust, which has that one file of load/."""
    (tmp_path / "load").mkdir()
    (tmp_path / "load/locustfile.py").write_bytes((ROOT / "load/locustfile.py").read_bytes())
    listed = installed.output(tmp_path, "python", "-m", "locust", "-f", "load/locustfile.py", "--list")
    assert "ChatUser" in listed
    assert installed.output(tmp_path, "orca-locust", "--list") == listed


def test_it_serves(installed: Environment, url: str, tmp_path: Path) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 20, "ignore_eos": True, "return_token_ids": True}
    reply = httpx.post(url + "/v1/completions", json=body, timeout=PATIENCE)
    assert reply.status_code == 200, reply.text
    assert len(reply.json()["choices"][0]["token_ids"]) == 20
    assert httpx.get(url + "/version", timeout=PATIENCE).json()["version"] == PROJECT["project"]["version"]
    assert "ready" in installed.output(tmp_path, "orca", "status", "--url", url)
    assert installed.output(tmp_path, "orca", "chat", "--url", url, "--max-tokens", "5", "hello")
