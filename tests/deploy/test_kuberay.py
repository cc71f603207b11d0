"""The KubeRay manifests against the operator's schema, typos included, and against each other."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests import schemas


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """An object that lists its properties is closed to others, as in the API server's strict mode."""
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not is_open:
        schema["additionalProperties"] = False
    return schema


@pytest.fixture(scope="module")
def crd() -> dict[str, Any]:
    resource = yaml.load(schemas.document("kuberay_rayservice_crd.yaml").read_text(), Loader=yaml.CSafeLoader)
    (version,) = [v for v in resource["spec"]["versions"] if v["name"] == "v1"]
    closed_to_others: dict[str, Any] = schemas.rewritten(version["schema"]["openAPIV3Schema"], closed)
    return closed_to_others


def errors(schema: dict[str, Any], value: Any) -> list[str]:
    return [f"{e.json_path}: {e.message}" for e in Draft7Validator(schema).iter_errors(value)]


def ray_pods(service: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = service["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"]["template"], *(g["template"] for g in cluster["workerGroupSpecs"])]


def pod_schema(crd: dict[str, Any]) -> dict[str, Any]:
    cluster = crd["properties"]["spec"]["properties"]["rayClusterConfig"]
    return cluster["properties"]["headGroupSpec"]["properties"]["template"]


def test_ray_service_follows_the_schema(crd: dict[str, Any], objects: dict[str, Any]) -> None:
    assert errors(crd, objects["RayService/orca"]) == []


def test_pool_pods_follow_the_schema(crd: dict[str, Any], objects: dict[str, Any]) -> None:
    assert errors(pod_schema(crd), objects["StatefulSet/orca-pool"]["spec"]["template"]) == []


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ((), "serveConfigV3"),
        (("rayClusterConfig", "headGroupSpec"), "rayStartParam"),
        (("rayClusterConfig", "workerGroupSpecs", 0, "template", "spec", "containers", 0), "imagePolicy"),
    ],
)
def test_the_schema_notices_a_typo(crd: dict[str, Any], ray_service: dict[str, Any], path: tuple, key: str) -> None:
    assert errors(crd, ray_service) == []
    broken = copy.deepcopy(ray_service)
    place = broken["spec"]
    for step in path:
        place = place[step]
    place[key] = {}
    (error,) = errors(crd, broken)
    assert key in error


def test_what_is_named_exists(objects: dict[str, Any]) -> None:
    pods = [*ray_pods(objects["RayService/orca"]), objects["StatefulSet/orca-pool"]["spec"]["template"]]
    for container in (c for pod in pods for c in pod["spec"]["containers"]):
        for source in container.get("envFrom", ()):
            assert f"ConfigMap/{source['configMapRef']['name']}" in objects
        for variable in container["env"]:
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                assert reference["key"] in objects[f"Secret/{reference['name']}"]["data"]
            else:
                host = variable["value"].split("@")[1].split(":")[0]
                assert f"Service/{host}" in objects


def test_selectors_meet_pods(objects: dict[str, Any]) -> None:
    pods = [*ray_pods(objects["RayService/orca"]), objects["StatefulSet/orca-pool"]["spec"]["template"]]
    labels = [pod["metadata"]["labels"] for pod in pods]

    def matched(selector: dict[str, Any]) -> int:
        wanted = {key: [value] for key, value in selector.get("matchLabels", {}).items()}
        wanted |= {e["key"]: e["values"] for e in selector.get("matchExpressions", ())}
        return sum(all(pod.get(key) in values for key, values in wanted.items()) for pod in labels)

    assert matched(objects["PodDisruptionBudget/orca-workers"]["spec"]["selector"]) == 1
    assert matched(objects["PodDisruptionBudget/orca-singles"]["spec"]["selector"]) == 2
    assert matched(objects["StatefulSet/orca-pool"]["spec"]["selector"]) == 1
    assert matched({"matchLabels": objects["Service/orca-pool"]["spec"]["selector"]}) == 1


def test_the_head_serves_nothing(objects: dict[str, Any]) -> None:
    spec = objects["RayService/orca"]["spec"]
    assert spec["excludeHeadPodFromServeSvc"] is True
    assert spec["rayClusterConfig"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    (app,) = yaml.safe_load(spec["serveConfigV2"])["applications"]
    for deployment in app["deployments"]:  # with no CPU at all they could be placed on the head
        assert deployment["ray_actor_options"]["num_cpus"] > 0


def test_kubernetes_adds_no_variables_that_look_like_settings(objects: dict[str, Any]) -> None:
    for pod in ray_pods(objects["RayService/orca"]):
        assert pod["spec"]["enableServiceLinks"] is False


def test_ray_and_the_pool_do_not_share_a_store(objects: dict[str, Any]) -> None:
    assert "gcsFaultToleranceOptions" not in objects["RayService/orca"]["spec"]["rayClusterConfig"]


def test_gpu_overlay_asks_for_one_gpu_and_says_cuda(objects: dict[str, Any]) -> None:
    worker = ray_pods(objects["RayService/orca"])[1]["spec"]["containers"][0]
    gpu = worker["image"] == "orca:cuda"
    assert ("nvidia.com/gpu" in worker["resources"]["limits"]) == gpu
    assert (objects["ConfigMap/orca-ray"]["data"].get("ORCA_DEVICE") == "cuda") == gpu
