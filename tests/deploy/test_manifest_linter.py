"""The linter checkov on the manifests, and on the pods that the operator makes of them. It pins many packages, so it is
no dependency of the tests: it runs where it is on the PATH, from an environment of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import ROOT
from tests.deploy.kuberay_operator import head_pod, worker_pod

CONFIG = ROOT / "deploy/kuberay/checkov.yaml"

pytestmark = [
    pytest.mark.chaos,  # half a minute
    pytest.mark.skipif(shutil.which("checkov") is None, reason="checkov is not on the PATH"),
]


def checkov(objects: list[dict[str, Any]], folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    command = ["checkov", "--config-file", str(CONFIG), "--file", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def linted(objects: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects, in a namespace, with the pods that the operator makes."""
    service = objects["RayService/orca"]
    made = {"head": head_pod(service), "worker": worker_pod(service)}
    pods = [
        {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": pod["metadata"] | {"name": name}}
        for name, pod in made.items()
    ]
    return [each | {"metadata": each["metadata"] | {"namespace": "orca"}} for each in (*objects.values(), *pods)]


def test_nothing_is_found_but_what_the_config_gives_a_reason_for(objects: dict[str, Any], tmp_path: Path) -> None:
    if "Secret/orca-pool" in objects:
        pytest.skip("the overlay for development has a password that everybody knows")
    done = checkov(linted(objects), tmp_path)
    assert done.returncode == 0, done.stdout


def test_a_root_that_can_be_written_is_found(objects: dict[str, Any], tmp_path: Path) -> None:
    found = linted(objects)
    found[-1]["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = False
    done = checkov(found, tmp_path)
    assert done.returncode == 1
    assert "CKV_K8S_22" in done.stdout
