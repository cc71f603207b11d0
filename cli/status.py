"""`orca status`: prints what a running server is doing, from its metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from cli.arguments import Parser
from cli.server import add_server, connection, served_model
from services.errors import OrcaError

KEPT = "orca:weights_info"
FIGURES = {
    "vllm:num_requests_running": "running requests",
    "vllm:num_requests_waiting": "waiting requests",
    "orca:engines": "engines",
    "orca:gateways": "gateways",
    "vllm:kv_cache_usage_perc": "KV blocks held (share)",
    "orca:batch_size": "requests in the last iteration",
    "orca:peak_batch_size": "most requests in one iteration",
    "orca:iterations_total": "iterations",
    "orca:mixed_iterations_total": "of them mixed",
    "vllm:prompt_tokens_total": "prompt tokens",
    "vllm:generation_tokens_total": "output tokens",
    "orca:pool_bytes": "bytes in the pool",
    "orca:weight_bytes": "bytes of weights",
}


def run(arguments: list[str]) -> None:
    parser = Parser("orca status", "What a running server is doing.")
    add_server(parser)
    options = parser.read(arguments)
    with httpx.Client(**connection(options.url, options.api_key), timeout=10) as client:
        first = served_model(client)
        reply = client.get("/metrics")
        if reply.is_error:
            raise OrcaError(f"no figures: {reply.text}")
        page = reply.text
        samples = samples_of(page, FIGURES)
        models = list(dict.fromkeys(sample.labels["model_name"] for sample in samples)) or [first]
        cards = client.get("/v1/models").json()["data"]
        adapters = [card["id"] + f" of {card['parent']}" * (len(models) > 1) for card in cards if card.get("parent")]
        print(f"{client.base_url}  model{'s' * (len(models) > 1)} {', '.join(models)}  {_readiness(client)}")
    for name, label in FIGURES.items():
        for sample in samples:
            if sample.name == name:
                whose = sample.labels["model_name"] * (len(models) > 1), _whose(sample.labels)
                print(f"{label:32} {sample.value:>14,.10g}  {' '.join(filter(None, whose))}".rstrip())
    for weights in kept_weights(page):
        print(f"weights: {weights}")
    if adapters:
        print(f"adapters: {', '.join(adapters)}")


def models_in(metrics: str) -> list[str]:
    """The names of the models on a page of metrics, the default one first."""
    return list(dict.fromkeys(sample.labels["model_name"] for sample in samples_of(metrics, ["orca:engines"])))


def kept_weights(metrics: str) -> list[str]:
    """How engines keep their weights, by a page of metrics: each way once, of several models after the name."""
    labels = [sample.labels for sample in samples_of(metrics, [KEPT])]
    several = len({each["model_name"] for each in labels}) > 1
    told = (f"{each['model_name']}: " * several + each["weights"] for each in labels if each["weights"])
    return list(dict.fromkeys(told))


def samples_of(metrics: str, names: Container[str]) -> list[Sample]:
    """The samples of these names on a page of metrics."""
    families = text_string_to_metric_families(metrics)
    return [sample for family in families for sample in family.samples if sample.name in names]


def _whose(labels: Mapping[str, str]) -> str:
    """What a figure of a model belongs to: an engine, one of several shards, or the server."""
    if engine := labels.get("engine"):
        return f"engine {engine}"
    return f"shard {labels['shard']}" if "shard" in labels else ""


def _readiness(client: httpx.Client) -> str:
    reply = client.get("/ready")
    shown = reply.text.replace("\n", ", ")
    if reply.is_success:
        return ", ".join(filter(None, ("ready", shown)))
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return f"not ready: {reply.json()['error']['message']}"
    return "not ready"
