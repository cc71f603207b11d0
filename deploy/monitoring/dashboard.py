"""Writes orca.json, the Grafana dashboard.

python deploy/monitoring/dashboard.py

The variables choose a datasource, a model, one of the addresses that are scraped (each gives the figures of the whole
pool, so none is counted twice), engines and tenants.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("orca.json")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
POOL = 'model_name="$model", instance="$instance"'
ENGINE = POOL + ', engine=~"$engine"'
TENANT = POOL + ', tenant=~"$tenant"'
WIDTH, HEIGHT, GRID = 8, 8, 24  # of a panel, and the columns of the page

Target = tuple[str, str]  # expression, legend
Panel = dict[str, Any]


def panel(title: str, unit: str, *targets: Target, about: str = "") -> Panel:
    """A panel of lines from 0 upwards. `unit` is one of Grafana's."""
    lines = {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"}
    defaults = {"unit": unit, "min": 0, "custom": lines}
    return {
        "type": "timeseries",
        "title": title,
        "description": about,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + i), "expr": expression, "legendFormat": legend, "datasource": SOURCE}
            for i, (expression, legend) in enumerate(targets)
        ],
    }


def rate(name: str, labels: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({name}{{{labels}}}[$__rate_interval]))"


def increase(name: str, labels: str) -> str:
    return f"sum (increase({name}{{{labels}}}[$__rate_interval]))"


def quantiles(name: str, labels: str, *of: float) -> list[Target]:
    """The quantiles of a histogram."""
    return [(f"histogram_quantile({q}, {rate(f'{name}_bucket', labels, 'le')})", f"p{q * 100:g}") for q in of]


def mean(name: str, labels: str) -> str:
    return f"{rate(f'{name}_sum', labels)} / {rate(f'{name}_count', labels)}"


def latency(title: str, name: str, labels: str, about: str) -> Panel:
    return panel(title, "s", *quantiles(name, labels, 0.5, 0.9, 0.99), about=about)


ROWS: dict[str, list[Panel]] = {
    "Traffic": [
        panel(
            "Requests",
            "short",
            (f"vllm:num_requests_running{{{POOL}}}", "running"),
            (f"vllm:num_requests_waiting{{{POOL}}}", "waiting"),
        ),
        panel(
            "Tokens per second",
            "short",
            (rate("vllm:generation_tokens_total", ENGINE), "sampled"),
            (rate("vllm:prompt_tokens_total", ENGINE), "of prompts"),
        ),
        panel(
            "Ended and refused requests per second",
            "reqps",
            (rate("vllm:request_success_total", ENGINE, "finished_reason"), "{{finished_reason}}"),
            (rate("vllm:admission_rejections_total", POOL, "reason"), "refused: {{reason}}"),
        ),
        panel(
            "Output tokens per second, by tenant",
            "short",
            (rate("orca:tenant_generation_tokens_total", TENANT, "tenant"), "{{tenant}}"),
            about="Counted when a request ends.",
        ),
        panel(
            "Requests per second, by tenant and class",
            "reqps",
            (rate("orca:tenant_requests_total", TENANT, "tenant, priority"), "{{tenant}}, class {{priority}}"),
        ),
        panel("Lines of batches per second", "short", (rate("orca:batch_lines_total", POOL, "file"), "{{file}}")),
    ],
    "Latency": [
        latency("Time to first token", "vllm:time_to_first_token_seconds", TENANT, "From the gateway's receipt."),
        panel(
            "Time to first token, p99 by class",
            "s",
            (
                "histogram_quantile(0.99, "
                + rate("vllm:time_to_first_token_seconds_bucket", TENANT, "le, priority")
                + ")",
                "class {{priority}}",
            ),
        ),
        latency("Between tokens", "vllm:inter_token_latency_seconds", POOL, "As the gateway gets them."),
        latency("Queue", "vllm:request_queue_time_seconds", TENANT, "From arrival to the first iteration."),
        latency("Prefill", "vllm:request_prefill_time_seconds", ENGINE, "From the first iteration to the first token."),
        latency("Decode", "vllm:request_decode_time_seconds", ENGINE, "From the first token to the end."),
        latency("End to end", "vllm:e2e_request_latency_seconds", POOL, "From the gateway's receipt to the end."),
    ],
    "Scheduler": [
        panel(
            "Requests of an iteration",
            "short",
            (mean("orca:iteration_requests", ENGINE), "mean"),
            (f"orca:peak_batch_size{{{ENGINE}}}", "most, engine {{engine}}"),
        ),
        panel(
            "Tokens of an iteration",
            "short",
            (mean("vllm:iteration_tokens_total", ENGINE), "mean"),
            *quantiles("vllm:iteration_tokens_total", ENGINE, 0.99),
        ),
        panel(
            "Iterations per second",
            "short",
            (rate("orca:iterations_total", ENGINE), "all"),
            (rate("orca:mixed_iterations_total", ENGINE), "mixed"),
            about="Mixed: initiation and increment requests in one batch.",
        ),
        latency("Iteration", "orca:iteration_seconds", ENGINE, "From its start to its result, seen by the scheduler."),
    ],
    "KV cache": [
        panel("KV blocks held", "percentunit", (f"vllm:kv_cache_usage_perc{{{ENGINE}}}", "engine {{engine}}")),
        panel(
            "Preemptions",
            "short",
            (rate("vllm:num_preemptions_total", ENGINE), "preempted per second"),
            (f"sum (orca:paused_requests{{{ENGINE}}})", "paused"),
        ),
        panel(
            "Prefix cache hit rate",
            "percentunit",
            (
                f"{rate('vllm:prefix_cache_hits_total', ENGINE)} / {rate('vllm:prefix_cache_queries_total', ENGINE)}",
                "of prompt tokens",
            ),
        ),
    ],
    "Drafts": [
        panel(
            "Drafts",
            "short",
            (rate("vllm:spec_decode_num_drafts_total", ENGINE), "drafts per second"),
            (rate("vllm:spec_decode_num_draft_tokens_total", ENGINE), "their tokens per second"),
            (rate("vllm:spec_decode_num_accepted_tokens_total", ENGINE), "of them right"),
        ),
    ],
    "Engines": [
        panel(
            "Engines",
            "short",
            (f"orca:engines_wanted{{{POOL}}}", "wanted"),
            (f"orca:engines{{{POOL}}}", "with a scheduler"),
            (f"sum (orca:ready{{{POOL}}})", "ready"),
        ),
        panel(
            "Spares",
            "short",
            (f"orca:spare_ready{{{ENGINE}}}", "engine {{engine}}: process"),
            (f"orca:spare_schedulers{{{ENGINE}}}", "engine {{engine}}: schedulers"),
        ),
        panel(
            "Faults",
            "short",
            (increase("orca:engine_losses_total", ENGINE), "engines lost"),
            (increase("orca:engine_stuck_total", ENGINE), "of them stuck"),
            (increase("orca:scheduler_stuck_total", POOL), "schedulers stuck"),
            (increase("orca:scheduler_faults_total", ENGINE), "scheduler faults"),
            (increase("orca:reclaimed_requests_total", POOL), "requests reclaimed"),
            (increase("orca:poisoned_requests_total", POOL), "requests poisoned"),
            (increase("orca:timed_out_requests_total", POOL), "requests timed out"),
        ),
        panel(
            "Last recovery",
            "s",
            (
                f"orca:recovery_attached_time_seconds{{{ENGINE}}} - orca:recovery_noticed_time_seconds{{{ENGINE}}} > 0",
                "engine {{engine}}",
            ),
            about="From noticing the death, or from the start, until an engine with its weights is attached.",
        ),
        panel(
            "Numerics",
            "short",
            (f"orca:numerics{{{POOL}}}", "kinds"),
            (f"orca:fallback_engines{{{POOL}}}", "engines on transformers' layers"),
            about="Tokens differ between engines of different numerics.",
        ),
    ],
    "Pool": [
        panel(
            "Bytes",
            "bytes",
            (f"orca:pool_bytes{{{POOL}}}", "of requests"),
            (f"orca:pool_bytes_limit{{{POOL}}}", "limit"),
        ),
        panel("Exchange", "s", *quantiles("orca:exchange_seconds", ENGINE, 0.5, 0.99)),
        panel(
            "Ended requests that can be read, and tokens sent again",
            "short",
            (f"orca:ended_requests{{{POOL}}}", "ended"),
            (increase("orca:resent_tokens_total", ENGINE), "tokens sent again"),
            (f"orca:pool_full{{{POOL}}}", "memory full"),
        ),
    ],
    "Gateways": [
        panel(
            "Gateways",
            "short",
            (f"orca:gateways_wanted{{{POOL}}}", "wanted"),
            (f"orca:gateways{{{POOL}}}", "registered"),
        ),
        panel("Requests of each gateway", "short", (f"orca:gateway_requests{{{POOL}}}", "{{gateway}}")),
        panel(
            "Processor time",
            "percentunit",
            (rate("orca:gateway_cpu_seconds_total", POOL, "gateway"), "{{gateway}}"),
            about="1 is a whole core; a gateway is one thread for most of its work.",
        ),
        panel("Memory", "bytes", (f"orca:gateway_memory_bytes{{{POOL}}}", "{{gateway}}")),
        panel(
            "Lag of the event loop",
            "s",
            (f"orca:gateway_last_loop_lag_seconds{{{POOL}}}", "{{gateway}}"),
            *quantiles("orca:gateway_loop_lag_seconds", POOL, 0.99),
        ),
    ],
}


def variable(name: str, query: str, several: bool = False) -> dict[str, Any]:
    """A variable with the values of a label."""
    return {
        "type": "query",
        "name": name,
        "label": name.capitalize(),
        "datasource": SOURCE,
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "refresh": 2,  # whenever the time range changes
        "sort": 1,
        "multi": several,
        "includeAll": several,
        "options": [],
    } | ({"allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}} if several else {})


def dashboard() -> dict[str, Any]:
    panels: list[Panel] = []
    y = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "collapsed": False, "panels": []} | _at(0, y, GRID, 1))
        per_line = GRID // WIDTH
        for i, each in enumerate(row):
            panels.append(each | _at(WIDTH * (i % per_line), y + 1 + HEIGHT * (i // per_line), WIDTH, HEIGHT))
        y += 1 + HEIGHT * -(-len(row) // per_line)
    for number, each in enumerate(panels, 1):
        each["id"] = number
    source = {"type": "datasource", "name": "datasource", "label": "Datasource", "query": "prometheus", "options": []}
    return {
        "uid": "orca",
        "title": "Orca",
        "tags": ["orca"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                source,
                variable("model", "label_values(orca:engines, model_name)"),
                variable("instance", 'label_values(orca:engines{model_name="$model"}, instance)'),
                variable("engine", f"label_values(orca:ready{{{POOL}}}, engine)", several=True),
                variable("tenant", f"label_values(orca:tenant_requests_total{{{POOL}}}, tenant)", several=True),
            ]
        },
        "panels": panels,
    }


def _at(x: int, y: int, w: int, h: int) -> Panel:
    return {"gridPos": {"x": x, "y": y, "w": w, "h": h}}


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
