"""Prometheus and Grafana ask for metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from services.metrics import COUNTERS, OPTIONAL_GAUGES, render
from services.overview import Overview, Seat
from tests.deploy.conftest import ROOT

FOLDER = ROOT / "deploy/monitoring"
BOARD = json.loads((FOLDER / "orca.json").read_text())
EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def samples() -> dict[str, set[str]]:
    """The labels of each name on a page of /metrics, with a living seat and every labelled counter counted once."""
    counted = {"|".join((name, *("x" for _ in labels))): 1.0 for name, (_, labels) in COUNTERS.items()}
    overview = Overview(
        0, 0, 0, 0, None, [Seat("c/0", True, None, 0, dict.fromkeys(OPTIONAL_GAUGES, 0.0), "")], counted, 1
    )
    families = text_string_to_metric_families(render(overview, "tiny").decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def test_every_metric_of_the_dashboard_is_on_the_page() -> None:
    asked = {name for expression in EXPRESSIONS for name in metrics(expression)}
    assert len(asked) > 10
    assert asked - samples().keys() == set()


def test_every_label_of_the_dashboard_is_on_its_metric() -> None:
    labels = samples()
    for expression in EXPRESSIONS:
        lists = re.findall(r"\bby\s*\(([^)]*)\)", expression)
        asked = {label for one in lists for label in re.findall(r"\w+", one)}
        for metric in metrics(expression):
            has = labels.get(metric, set())
            assert asked <= has, f"{metric} has the labels {sorted(has)}, not {sorted(asked - has)}: {expression}"


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


def metrics(expression: str) -> list[str]:
    """The names of metrics in an expression."""
    return re.findall(r"[a-z]+:\w+", expression)


def _yaml(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())
