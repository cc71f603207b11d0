"""The dashboard, the alerts and the scrape configuration ask for metrics and labels that exist, and are valid."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from services.metrics import ModelPage, Wanted, render
from services.metrics.declared import COUNTERS, GATEWAY_COUNTERS, GATEWAY_GAUGES, HISTOGRAMS, OPTIONAL_GAUGES
from services.overview import Overview, SeatOverview
from tests.deploy.conftest import ROOT

FOLDER = ROOT / "deploy/monitoring"
BOARD = json.loads((FOLDER / "orca.json").read_text())
EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]
VARIABLES = {each["name"]: each for each in BOARD["templating"]["list"]}
ALERTS = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
SCRAPED = {"instance", "job"}  # labels that Prometheus adds
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool, of Prometheus, is not installed"
)


def samples() -> dict[str, set[str]]:
    """The labels of each name on a page of /metrics, with an engine, a gateway and every series counted once."""
    counted = {"|".join((name, *("x" for _ in counter.labels))): 1.0 for name, counter in COUNTERS.items()}
    counted |= {"|".join((f"{name}_sum", *("x" for _ in h.labels))): 1.0 for name, h in HISTOGRAMS.items()}
    seat = SeatOverview("c/0", True, None, 0, dict.fromkeys(OPTIONAL_GAUGES, 0.0), "")
    gauges = dict.fromkeys((*GATEWAY_GAUGES, *GATEWAY_COUNTERS), 0.0)
    overview = Overview(0, 0, 0, 0, None, [seat], counted, 1, gateway_gauges={"g": gauges})
    families = text_string_to_metric_families(render([ModelPage("tiny", {0: overview}, Wanted())]).decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def metrics(expression: str) -> list[str]:
    """The names of metrics in an expression."""
    return re.findall(r"\b(?:vllm|orca):\w+", expression)


def labels(expression: str) -> set[str]:
    """The labels by which an expression selects and groups, without those that Prometheus adds."""
    grouped = ",".join(re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression))
    selected = re.findall(r"(\w+)\s*(?:=~|!=|=)\s*\"", expression)
    return {*re.findall(r"\w+", grouped), *selected} - SCRAPED


def promtool(*arguments: str) -> str:
    result = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("expressions", [EXPRESSIONS, [rule["expr"] for rule in ALERTS]], ids=["dashboard", "alerts"])
def test_every_metric_that_is_asked_for_is_on_the_page_with_its_labels(expressions: list[str]) -> None:
    page = samples()
    asked = {name for expression in expressions for name in metrics(expression)}
    assert len(asked) > 10
    assert asked - page.keys() == set()
    for expression in expressions:
        has = set.union({"le"}, *(page[name] for name in metrics(expression)))
        assert labels(expression) <= has, f"{expression}: its metrics have {sorted(has)}"


def test_the_labels_in_legends_survive_the_expression() -> None:
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                by = re.findall(r"\bsum\s+by\s*\(([^)]*)\)", target["expr"])
                kept = [each for group in by for each in re.findall(r"\w+", group)]
                assert label in kept if "sum" in target["expr"] else label in samples()[metrics(target["expr"])[0]]


def test_every_metric_that_is_counted_is_on_the_dashboard_or_told_apart_there() -> None:
    """All but those that restate others, or that tools read."""
    elsewhere = {"vllm:request_inference_time_seconds", "vllm:request_time_per_output_token_seconds"}
    elsewhere |= {"vllm:request_prompt_tokens", "vllm:request_generation_tokens", "orca:tenant_prompt_tokens"}
    elsewhere |= {"vllm:request_params_max_tokens", "vllm:request_max_num_generation_tokens"}
    elsewhere |= {"vllm:spec_decode_num_accepted_tokens_per_pos"}
    shown = {re.sub(r"_(total|bucket|sum|count)$", "", name) for e in EXPRESSIONS for name in metrics(e)}
    shown |= {name for e in EXPRESSIONS for name in metrics(e)}
    assert {*COUNTERS, *HISTOGRAMS} - shown == elsewhere


def test_the_dashboard_is_what_its_program_writes() -> None:
    assert runpy.run_path(str(FOLDER / "dashboard.py"))["text"]() == (FOLDER / "orca.json").read_text()


def test_every_variable_of_an_expression_is_one_of_the_dashboard() -> None:
    used = {name for e in EXPRESSIONS for name in re.findall(r"\$(\w+)", e)} - {"__rate_interval"}
    assert used == VARIABLES.keys() - {"datasource"}
    assert {panel["datasource"]["uid"] for panel in BOARD["panels"] if panel["type"] != "row"} == {"${datasource}"}


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    """Grafana's own types read it and write it again; a field that they do not know is lost."""
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()

    def through(board: dict[str, Any]) -> list[str]:
        return sorted(_lost(board, json.loads(JSONEncoder().encode(Dashboard.from_json(board)))))

    assert through(BOARD) == []
    wrong = json.loads(json.dumps(BOARD))
    wrong["panels"][1]["options"]["legend"]["place"] = "bottom"
    assert through(wrong) == [".panels[1].options.legend.place"]


@needs_promtool
def test_prometheus_reads_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {
            "record": f"panel:{i}",
            "expr": re.sub(r"\$__rate_interval", "1m", re.sub(r"\$(model|instance|engine|tenant)", "x", e)),
        }
        for i, e in enumerate(EXPRESSIONS)
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(EXPRESSIONS)} rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("check", "rules", str(FOLDER / "alerts.yml"))
    promtool("test", "rules", str(FOLDER / "alerts_test.yml"))


def test_every_alert_is_tested_and_says_what_it_means_and_what_to_do() -> None:
    tested = (FOLDER / "alerts_test.yml").read_text()
    for rule in ALERTS:
        assert f'alertname="{rule["alert"]}"' in tested
        assert rule["annotations"].keys() == {"summary", "meaning", "look", "action"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_operations_tell_of_every_alert_and_kubernetes_has_the_same_rules() -> None:
    generate = runpy.run_path(str(ROOT / "docs/generate.py"))
    document = (ROOT / "docs/operations.md").read_text()
    assert generate["operations"]() == document
    assert all(f"| `{rule['alert']}` |" in document for rule in ALERTS)
    text = (FOLDER / "prometheusrule.yaml").read_text()
    assert generate["prometheus_rule"]() == text
    assert yaml.safe_load(text)["spec"]["groups"][0]["rules"] == ALERTS


def test_kubernetes_scrapes_what_prometheus_does() -> None:
    (job,) = _yaml("prometheus.yml")["scrape_configs"]
    (endpoint,) = _yaml("podmonitor.yaml")["spec"]["podMetricsEndpoints"]
    (relabeling,) = endpoint["relabelings"]
    assert relabeling == {"targetLabel": "job", "replacement": job["job_name"]}
    assert endpoint["path"] == job.get("metrics_path", "/metrics")


@needs_promtool
def test_prometheus_accepts_its_configuration() -> None:
    promtool("check", "config", str(FOLDER / "prometheus.yml"))


def test_grafana_and_prometheus_find_each_other(compose: dict[str, Any]) -> None:
    (source,) = _yaml("datasource.yml")["datasources"]
    assert source["type"] == VARIABLES["datasource"]["query"]
    assert source["url"].split("/")[2].split(":")[0] in compose["services"]
    (provider,) = _yaml("dashboards.yml")["providers"]
    mounted = [volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]]
    assert str(Path(provider["options"]["path"], "orca.json")) in mounted
    mounted = [volume.split(":")[1] for volume in compose["services"]["prometheus"]["volumes"]]
    assert {f"/etc/prometheus/{name}" for name in _yaml("prometheus.yml")["rule_files"]} <= set(mounted)


def test_prometheus_asks_a_service_that_serves(compose: dict[str, Any]) -> None:
    (job,) = _yaml("prometheus.yml")["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert any(p.endswith(f":{port}") for p in compose["services"][host]["ports"])


def _lost(given: Any, kept: Any, path: str = "") -> list[str]:
    """The paths of what is in `given` and not, or differently, in `kept`."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [lost for key in given for lost in _lost(given[key], kept.get(key), f"{path}.{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [lost for i, (a, b) in enumerate(zip(given, kept, strict=True)) for lost in _lost(a, b, f"{path}[{i}]")]
    return [] if given == kept else [path]


def _yaml(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())
