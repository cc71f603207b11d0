"""The KubeRay manifests against the schemas of Kubernetes and of the operator, and against each other."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator

from services.pool.server.resources import max_memory
from services.settings.settings import Settings
from services.settings.sources import from_values
from tests import schemas
from tests.deploy.conftest import ROOT
from tests.deploy.kuberay_operator import AGENT_PORT, GCS_PORT, METRICS_PORT
from tests.deploy.policies import open_ports, ranges, selects

KUBERNETES = "1.32"  # whose schemas are taken
CUSTOM = ("ray.io/v1", "monitoring.coreos.com/v1")
SECRETS = {"orca-pool": "password", "orca-gcs": "password", "orca-keys": "keys"}  # that secrets.sh makes
SERVE_PORTS = (30_000, 31_000)  # of replicas behind HAProxy, by default
NODES = ({"app.kubernetes.io/name": "orca", "app.kubernetes.io/component": part} for part in ("head", "worker"))
HEAD, WORKER = NODES


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


def pods(objects: dict[str, Any]) -> list[dict[str, Any]]:
    """The templates of all pods."""
    sets = [o for o in objects.values() if o["kind"] == "StatefulSet"]
    return [*ray_pods(objects["RayService/orca"]), *(o["spec"]["template"] for o in sets)]


def test_kubernetes_knows_every_field_of_its_own_kinds(objects: dict[str, Any]) -> None:
    own = [o for o in objects.values() if o["apiVersion"] not in CUSTOM]
    assert len(own) > 8
    for each in own:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_refused(objects: dict[str, Any]) -> None:
    policy = copy.deepcopy(objects["NetworkPolicy/orca-nodes"])
    policy["spec"]["ingress"][0]["ports"][0]["lastPort"] = 6383
    with pytest.raises(kubernetes_validate.ValidationError, match="lastPort"):
        kubernetes_validate.validate(policy, KUBERNETES, strict=True)


def test_what_is_named_exists(objects: dict[str, Any]) -> None:
    made = {o["metadata"]["name"]: o["data"] for o in objects.values() if o["kind"] == "Secret"}
    for pod in pods(objects):
        volumes = {each["name"]: each for each in pod["spec"].get("volumes", ())}
        for container in pod["spec"]["containers"]:
            for source in container.get("envFrom", ()):
                assert f"ConfigMap/{source['configMapRef']['name']}" in objects
            for variable in container["env"]:
                if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                    assert reference["key"] in (*made.get(reference["name"], ()), SECRETS[reference["name"]])
                else:
                    host = variable["value"].split("@")[1].split(":")[0]
                    assert f"Service/{host}" in objects
            mounted = {each["name"] for each in container["volumeMounts"]}
            assert mounted - {"data"} == volumes.keys()
        for volume in volumes.values():
            if claim := volume.get("persistentVolumeClaim"):
                assert f"PersistentVolumeClaim/{claim['claimName']}" in objects
            if secret := volume.get("secret"):
                assert secret["secretName"] in SECRETS


def test_secrets_are_made_by_the_script_and_in_no_production_manifest(objects: dict[str, Any]) -> None:
    script = (ROOT / "deploy/kuberay/secrets.sh").read_text()
    assert all(name in script for name in SECRETS)
    if configuration(objects).get("ORCA_ALLOW_NO_KEYS") != "true":  # as only the overlay for development says
        assert not [o for o in objects.values() if o["kind"] == "Secret"]
        assert configuration(objects)["ORCA_API_KEYS_FILE"] == "/etc/orca/keys/keys"


def configuration(objects: dict[str, Any]) -> dict[str, str]:
    """The environment of head and workers."""
    (found,) = [o["data"] for name, o in objects.items() if name.startswith("ConfigMap/orca-ray-")]
    return found


def given_settings(given: dict[str, str]) -> Settings:
    """What the environment says of models, their engines and their pools."""
    own = ("ORCA_MODEL", "ORCA_MODELS", "ORCA_ENGINES", "ORCA_MAX_POOL_BYTES")
    return from_values({name.removeprefix("ORCA_").lower(): given[name] for name in own if name in given})


def test_a_changed_setting_makes_another_cluster(objects: dict[str, Any]) -> None:
    """The name of the ConfigMap ends with a hash, and KubeRay makes a new cluster when the RayService names another."""
    for pod in ray_pods(objects["RayService/orca"]):
        (source,) = pod["spec"]["containers"][0]["envFrom"]
        assert len(source["configMapRef"]["name"]) == len("orca-ray-") + 10


def test_selectors_meet_pods(objects: dict[str, Any]) -> None:
    labels = [pod["metadata"]["labels"] for pod in pods(objects)]

    def matched(selector: dict[str, Any]) -> int:
        return sum(selects(selector, each) for each in labels)

    expected = {"orca-pool": 1, "orca-nodes": 2, "orca-operator": 1, "orca-api": 1, "orca-gcs": 1}
    for each in objects.values():
        spec = each.get("spec", {})
        if each["kind"] == "NetworkPolicy":
            assert matched(spec["podSelector"]) == expected[each["metadata"]["name"]]
        if each["kind"] in ("StatefulSet", "PodDisruptionBudget", "PodMonitor"):
            assert matched(spec["selector"]) == 1
        if each["kind"] == "Service":
            assert matched({"matchLabels": spec["selector"]}) == 1


def test_a_drain_takes_a_worker_while_another_is_left(objects: dict[str, Any]) -> None:
    """A RayCluster has no /scale, so a budget is an integer; with one worker it would block every drain."""
    (group,) = objects["RayService/orca"]["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    budget = objects.get("PodDisruptionBudget/orca-workers")
    assert (budget is None) == (group["minReplicas"] == 1)
    if budget:
        assert "maxUnavailable" not in budget["spec"]
        assert 0 < budget["spec"]["minAvailable"] < group["minReplicas"]


def test_every_port_of_ray_is_fixed_and_let_in_between_nodes_alone(objects: dict[str, Any]) -> None:
    policies = [o for o in objects.values() if o["kind"] == "NetworkPolicy"]
    cluster = objects["RayService/orca"]["spec"]["rayClusterConfig"]
    groups = {"head": cluster["headGroupSpec"], "worker": cluster["workerGroupSpecs"][0]}
    for group, of in itertools.product(groups.values(), (HEAD, WORKER)):
        labels, given = group["template"]["metadata"]["labels"], group["rayStartParams"]
        (sysctl,) = group["template"]["spec"]["securityContext"]["sysctls"]
        assert sysctl["name"] == "net.ipv4.ip_local_port_range"
        single = ("node-manager-port", "object-manager-port", "runtime-env-agent-port", "dashboard-agent-grpc-port")
        fixed = {int(given[name]) for name in single} | {int(AGENT_PORT)}
        chosen = tuple(map(int, sysctl["value"].split()))
        spans = [chosen, (int(given["min-worker-port"]), int(given["max-worker-port"])), SERVE_PORTS]
        opened = open_ports(policies, labels, of)
        for first, last in [*spans, *((port, port) for port in fixed)]:
            assert any(low <= first and last <= high for low, high in opened), f"{first} to {last}"
        # no connection may take the port of a server before it starts
        for port in (*fixed, int(GCS_PORT), int(METRICS_PORT), 8000, 8265, *SERVE_PORTS):
            assert not chosen[0] <= port <= chosen[1]


def test_others_reach_the_api_alone(objects: dict[str, Any]) -> None:
    policies = [o for o in objects.values() if o["kind"] == "NetworkPolicy"]
    for pod in pods(objects):
        labels = pod["metadata"]["labels"]
        opened = open_ports(policies, labels, {"app": "a stranger"})
        assert opened == ([(8000, 8000)] if labels == WORKER else [])
    pool = objects["NetworkPolicy/orca-pool"]["spec"]
    assert [ports for rule in pool["ingress"] for ports in ranges(rule)] == [(6379, 6379)]


def test_containers_have_a_read_only_root_and_no_rights(objects: dict[str, Any]) -> None:
    cluster = objects["RayService/orca"]["spec"]["rayClusterConfig"]
    contexts = [each["securityContext"] for pod in pods(objects) for each in pod["spec"]["containers"]]
    if cluster.get("enableInTreeAutoscaling"):
        contexts.append(cluster["autoscalerOptions"]["securityContext"])
    for context in contexts:
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
    for pod in pods(objects):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        is_head = pod["metadata"]["labels"] == HEAD
        assert pod["spec"]["automountServiceAccountToken"] is (is_head and bool(cluster.get("enableInTreeAutoscaling")))


def test_the_pools_memory_has_room_for_a_rewrite_of_its_file(objects: dict[str, Any]) -> None:
    (server,) = objects["StatefulSet/orca-pool"]["spec"]["template"]["spec"]["containers"]
    most = int(server["command"][server["command"].index("--maxmemory") + 1].removesuffix("mb")) << 20
    pool_bytes = sum(each.max_pool_bytes for each in given_settings(configuration(objects)).each)
    limit = int(server["resources"]["limits"]["memory"].removesuffix("Gi")) << 30
    assert most == max_memory(pool_bytes, total=limit)
    assert 2 * most < limit


def test_the_component_has_two_models_and_an_engine_of_each_has_a_worker(objects: dict[str, Any]) -> None:
    given = configuration(objects)
    if "ORCA_MODELS" in given:
        first, second = given_settings(given).each
        assert second.min_engines == 0
        (workers,) = objects["RayService/orca"]["spec"]["rayClusterConfig"]["workerGroupSpecs"]
        assert first.engines + second.engines == workers["replicas"]


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
    options = objects["RayService/orca"]["spec"]["rayClusterConfig"].get("gcsFaultToleranceOptions")
    if options is None:
        assert "StatefulSet/orca-gcs" not in objects
    else:
        assert options["redisAddress"] == "redis://orca-gcs:6379"
        assert options["redisPassword"]["valueFrom"]["secretKeyRef"]["name"] == "orca-gcs"


def test_gpu_overlay_asks_for_one_gpu_and_says_cuda(objects: dict[str, Any]) -> None:
    worker = ray_pods(objects["RayService/orca"])[1]["spec"]["containers"][0]
    gpu = worker["image"] == "orca:cuda"
    assert ("nvidia.com/gpu" in worker["resources"]["limits"]) == gpu
    assert (configuration(objects).get("ORCA_DEVICE") == "cuda") == gpu
