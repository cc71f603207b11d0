"""Prometheus and Grafana ask for metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from services.overview import Overview, Seat
from services.telemetry import COUNTERS, OPTIONAL_GAUGES, render
from tests.deploy.conftest import ROOT

FOLDER = ROOT / "deploy/monitoring"
BOARD = json.loads((FOLDER / "orca.json").read_text())
EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def samples() -> set[str]:
    """The names on a page of /metrics, with every labelled counter counted once."""
    counted = {"|".join((name, *("x" for _ in labels))): 1.0 for name, (_, labels) in COUNTERS.items()}
    overview = Overview(
        0, 0, 0, 0, None, [Seat("c/0", True, None, 0, dict.fromkeys(OPTIONAL_GAUGES, 0.0), "")], counted, 1
    )
    families = text_string_to_metric_families(render(overview, "tiny").decode())
    return {sample.name for family in families for sample in family.samples}


def test_every_metric_of_the_dashboard_is_on_the_page() -> None:
    asked = {name for expression in EXPRESSIONS for name in re.findall(r"[a-z]+:\w+", expression)}
    assert len(asked) > 10
    assert asked - samples() == set()


def test_every_label_of_the_dashboard_is_on_its_metric() -> None:
    labels = {f"{name}_total": set(names) for name, (_, names) in COUNTERS.items()}
    for expression in EXPRESSIONS:
        for name in re.findall(r"by \((\w+)\)", expression):
            (metric,) = re.findall(r"[a-z]+:\w+", expression)
            assert name in labels.get(metric, {"le"})


def test_grafana_and_prometheus_find_each_other(compose: dict[str, Any]) -> None:
    (source,) = _yaml("datasource.yml")["datasources"]
    assert {panel["datasource"]["uid"] for panel in BOARD["panels"]} == {source["uid"]}
    assert source["url"].split("/")[2].split(":")[0] in compose["services"]
    (provider,) = _yaml("dashboards.yml")["providers"]
    mounted = [volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]]
    assert str(Path(provider["options"]["path"], "orca.json")) in mounted


def test_prometheus_asks_a_service_that_serves(compose: dict[str, Any]) -> None:
    (job,) = _yaml("prometheus.yml")["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert any(p.endswith(f":{port}") for p in compose["services"][host]["ports"])


def _yaml(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())
