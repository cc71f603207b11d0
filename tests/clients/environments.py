"""An environment of its own for each set of packages: a venv made by uv, or a folder of npm."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal, Protocol

INSTALL_TIMEOUT = 1800.0  # seconds
PIP_TO_UV = {"PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_EXTRA_INDEX_URL": "UV_INDEX", "PIP_FIND_LINKS": "UV_FIND_LINKS"}


class NotInstalled(Exception):
    """Packages cannot be installed here; says why."""


class Installed(Protocol):
    """What is installed: see Client."""

    @property
    def packages(self) -> tuple[str, ...]: ...

    @property
    def kind(self) -> Literal["python", "npm"]: ...

    @property
    def overrides(self) -> tuple[str, ...]: ...


class Environments:
    """All lie in `folder`; one is made when it is first asked for, and again when its packages have changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._folder.mkdir(parents=True, exist_ok=True)

    def command(self, client: Installed, script: Path) -> list[str]:
        """What runs `script` in the client's environment.

        Raises:
            NotInstalled: with the last lines of the installer.
        """
        place = self._folder / _key(client)
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            (self._python if client.kind == "python" else self._npm)(client, place)
            (place / "complete").touch()
        if client.kind == "python":
            return [str(place / "bin" / "python"), str(script)]
        # node looks for packages beside the script
        for file in script.parent.glob("*.mjs"):
            shutil.copy(file, place)
        return ["node", str(place / script.name)]

    def _python(self, client: Installed, place: Path) -> None:
        uv = str(Path(sys.executable).with_name("uv"))
        if not Path(uv).exists():
            raise NotInstalled(f"there is no {uv}: pip install uv")
        environment = os.environ | {uv: os.environ[pip] for pip, uv in PIP_TO_UV.items() if pip in os.environ}
        if links := environment.get("UV_FIND_LINKS"):  # which commas separate, not spaces
            environment["UV_FIND_LINKS"] = ",".join(links.split())
        _run([uv, "venv", "--python", sys.executable, "--allow-existing", str(place)], environment)
        install = [uv, "pip", "install", "--quiet", "--python", str(place / "bin" / "python"), *client.packages]
        if client.overrides:
            overrides = place / "overrides.txt"
            overrides.write_text("\n".join(client.overrides))
            install += ["--override", str(overrides)]
        _run(install, environment)

    def _npm(self, client: Installed, place: Path) -> None:
        if not shutil.which("npm"):
            raise NotInstalled("npm is not on the PATH")
        (place / "package.json").write_text("{}")
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(place), *client.packages]
        _run(command, dict(os.environ))


def _key(client: Installed) -> str:
    """The same for clients with the same packages, which share one environment."""
    packages = "\n".join((client.kind, sys.version, *client.packages, *client.overrides))
    name = client.packages[0].strip("@").split("=")[0].split("[")[0].split("@")[0].replace("/", "-")
    return f"{name}-{hashlib.sha256(packages.encode()).hexdigest()[:8]}"


def _run(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=INSTALL_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"{command[0]} took longer than {INSTALL_TIMEOUT:.0f} s") from error
    if done.returncode != 0:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NotInstalled(" ".join(said[-6:])[:600] or f"{command[0]} ended with {done.returncode}")
