"""The Serve application is named in three places: a file, a RayService and the code. They must agree."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from actors.app import build
from actors.cluster.environment import SERVE_MODE
from actors.front_door import connection_limits
from services.errors import SettingsError
from services.settings import exposure
from services.settings.settings import NAMES, Settings
from services.settings.sources import load
from services.settings.types import hash_of
from tests.deploy.compose_cluster import interpolated
from tests.deploy.conftest import ROOT

FILE = yaml.safe_load((ROOT / "deploy/serve.yaml").read_text())


@pytest.fixture(scope="module")
def in_service(ray_service: dict[str, Any]) -> dict[str, Any]:
    return yaml.safe_load(ray_service["spec"]["serveConfigV2"])


def test_both_are_serve_configs(in_service: dict[str, Any]) -> None:
    for config in (FILE, in_service):
        ServeDeploySchema.model_validate(config)


def test_they_agree_on_all_but_arguments_and_proxies(in_service: dict[str, Any]) -> None:
    def common(config: dict[str, Any]) -> dict[str, Any]:
        (app,) = config["applications"]
        rest = {key: value for key, value in config.items() if key not in ("applications", "proxy_location")}
        return rest | {key: value for key, value in app.items() if key != "args"}

    assert common(FILE) == common(in_service)


def test_arguments_are_settings(in_service: dict[str, Any]) -> None:
    for config in (FILE, in_service):
        args = config["applications"][0]["args"]
        assert set(args) <= set(NAMES)
        Settings(**args)


def test_the_secret_stays_out_of_the_arguments(in_service: dict[str, Any]) -> None:
    assert "redis_url" not in in_service["applications"][0]["args"]


def test_a_password_in_the_arguments_is_refused_unsaid() -> None:
    with pytest.raises(SettingsError, match="redis_url") as raised:
        build({"redis_url": "redis://:abc123@nowhere"})
    assert "abc123" not in str(raised.value)


def test_schedulers_get_no_keys_and_gateways_hashes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_REDIS_URL", "redis://:abc123@nowhere")
    monkeypatch.setenv("ORCA_API_KEY", "one-key")
    gateway = build({"api_keys": {"other-key": "alice"}})._bound_deployment
    values, scheduler = gateway.init_args
    (keyless,) = scheduler._bound_deployment.init_args
    assert load(**values).tenants == {hash_of("one-key"): "default", hash_of("other-key"): "alice"}
    assert load(**keyless).tenants == {}
    for given in (values, keyless):
        assert "redis_url" not in given
        assert not re.search("abc123|one-key|other-key", repr(given))
        assert load(**given).redis_url.get_secret_value() == "redis://:abc123@nowhere"


def test_what_others_reach_has_keys_or_says_that_it_wants_none(compose: dict[str, Any]) -> None:
    text = (ROOT / "deploy/kuberay/base/ray.env").read_text()
    in_pods = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
    assert in_pods["ORCA_API_KEYS_FILE"]
    assert "ORCA_ALLOW_NO_KEYS" not in in_pods
    in_compose = interpolated(compose)["services"]["head"]["environment"]
    exposure.check(Settings(host=in_compose["ORCA_HOST"], allow_no_keys=in_compose["ORCA_ALLOW_NO_KEYS"]))
    for environment in (in_pods, in_compose):
        with pytest.raises(SettingsError, match="without an API key"):
            exposure.check(Settings(host=environment["ORCA_HOST"]))


def test_they_name_the_deployments_of_the_code(in_service: dict[str, Any]) -> None:
    built = build({"redis_url": "redis://nowhere"})
    names = {built._bound_deployment.name, *(d._bound_deployment.name for d in built._bound_deployment.init_args[1:])}
    assert {d["name"] for d in in_service["applications"][0]["deployments"]} == names


def test_ray_runs_in_the_same_mode_everywhere(compose: dict[str, Any], ray_service: dict[str, Any]) -> None:
    text = (ROOT / "deploy/kuberay/base/ray.env").read_text()
    in_pods = dict(line.split("=", 1) for line in text.splitlines() if line.startswith("RAY_"))
    in_containers = {k: v for k, v in compose["services"]["head"]["environment"].items() if k.startswith("RAY_")}
    assert in_containers.pop("RAY_AUTH_MODE") == "token"  # which the operator sets in pods
    assert ray_service["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}
    assert in_pods == in_containers
    assert in_pods.pop("RAY_SERVE_HAPROXY_BINARY_PATH") == "/usr/local/bin/orca-haproxy"  # where the image has it
    assert int(in_pods.pop("RAY_SERVE_HAPROXY_MAXCONN")) >= connection_limits(Settings(), 1 << 20).maxconn
    assert in_pods.items() <= SERVE_MODE.items()
