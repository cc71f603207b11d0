"""docker-compose.yml against the Compose Specification, and what only holds between its services."""

from __future__ import annotations

import json
import re
from typing import Any

from jsonschema import Draft7Validator

from services.settings.settings import NAMES
from tests import schemas
from tests.deploy.compose_cluster import interpolated
from tests.deploy.conftest import ROOT

SERVER = ("prepare", "head", "worker", "deploy")


def test_follows_the_specification(compose: dict[str, Any]) -> None:
    schema = json.loads(schemas.document("compose_spec.json").read_text())
    assert [f"{e.json_path}: {e.message}" for e in Draft7Validator(schema).iter_errors(compose)] == []


def test_what_is_named_exists(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in compose["volumes"]
    assert (ROOT / services["head"]["build"]["dockerfile"]).exists()
    assert (ROOT / interpolated(services["head"]["env_file"])).exists()


def test_containers_have_no_rights_and_do_not_write_to_their_image(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if name == "grafana":  # no run has shown what it needs
            continue
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["tmpfs"] == ["/tmp"], name


def test_waiting_for_health_is_waiting_for_something(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for name, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[name]


def test_the_server_runs_from_one_image(compose: dict[str, Any]) -> None:
    assert {compose["services"][name]["image"] for name in SERVER} == {"orca"}


def test_the_image_of_locust_is_a_stage_of_the_dockerfile_and_the_server_is_the_last(compose: dict[str, Any]) -> None:
    server, locust = compose["services"]["head"]["build"], compose["services"]["locust"]["build"]
    stages = re.findall(r"^FROM .* AS (\w+)$", (ROOT / server["dockerfile"]).read_text(), re.MULTILINE)
    assert stages[-1] == "server"
    assert "target" not in server
    assert locust["target"] in stages
    assert locust == server | {"target": locust["target"]}


def test_all_ray_nodes_have_the_same_environment(compose: dict[str, Any]) -> None:
    head, worker = compose["services"]["head"], compose["services"]["worker"]
    assert head["environment"] == worker["environment"]
    assert head["volumes"] == worker["volumes"]


def test_only_settings_are_set(compose: dict[str, Any]) -> None:
    known = {f"ORCA_{name.upper()}" for name in NAMES}
    named = {name for name in compose["services"]["head"]["environment"] if name.startswith("ORCA_")}
    assert named <= known


def test_ports_are_published_on_the_loopback_address_alone(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_pool_keeps_what_it_is_given(compose: dict[str, Any]) -> None:
    pool = compose["services"]["pool"]
    arguments = dict(zip(pool["command"][1::2], pool["command"][2::2], strict=True))
    assert arguments["--appendonly"] == "yes"
    assert arguments["--maxmemory-policy"] == "noeviction"
    assert any(volume.endswith(":/data") for volume in pool["volumes"])


def test_the_object_store_fits_the_shared_memory(compose: dict[str, Any]) -> None:
    for name in ("head", "worker"):
        service = compose["services"][name]
        (store,) = [int(a.split("=")[1]) for a in service["command"] if a.startswith("--object-store-memory=")]
        assert store < int(service["shm_size"].removesuffix("mb")) << 20
