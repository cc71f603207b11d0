"""What the tests of deploy/ share: the files, and the manifests as kustomize builds them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def kustomize(folder: str | Path) -> list[dict[str, Any]]:
    """The objects of a kustomization, as `kubectl` builds them. A relative folder is one of deploy/kuberay."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on the PATH to build the kustomization with")
    built = subprocess.run(
        [kubectl, "kustomize", ROOT / "deploy/kuberay" / folder], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return list(yaml.safe_load_all(built.stdout))


@pytest.fixture(scope="session", params=["base", "overlays/cpu", "overlays/gpu", "overlays/dev", "everything"])
def objects(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Base and overlays in turn, and the base with all components: their objects by `Kind/name`."""
    folder = Path(request.param)
    if request.param == "everything":
        folder = tmp_path_factory.mktemp("everything").resolve()
        components = (f"kuberay/components/{name}" for name in ("autoscaling", "gcs-store", "models"))
        parts = (*components, "monitoring")
        parts_from_there = [os.path.relpath(ROOT / "deploy" / part, folder) for part in parts]
        base = os.path.relpath(ROOT / "deploy/kuberay/base", folder)
        (folder / "kustomization.yaml").write_text(
            yaml.safe_dump({"resources": [base], "components": parts_from_there})
        )
    return {f"{o['kind']}/{o['metadata']['name']}": o for o in kustomize(folder)}


@pytest.fixture(scope="session")
def ray_service() -> dict[str, Any]:
    """The RayService of the base as written, for tests that need no kubectl."""
    return yaml.safe_load((ROOT / "deploy/kuberay/base/rayservice.yaml").read_text())
