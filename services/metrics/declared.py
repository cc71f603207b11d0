"""The metrics that exist: names, labels, meanings and buckets. Names are those of vLLM if the meaning is the same.

A counter or histogram is a sum in the pool. Labels have few values: `engine` is the number of an engine, `tenant` a
tenant that `metrics_tenants` names or `other`, `priority` a class of requests (`batch`: lines of batches).
"""

from __future__ import annotations

from dataclasses import dataclass

_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_TOKENS = tuple(float(1 << i) for i in range(16))
_BATCH = tuple(float(1 << i) for i in range(10))
# vLLM's buckets of such times, with smaller ones for engines that start a request within milliseconds
_PHASE = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, *_LATENCY)


@dataclass(frozen=True, slots=True)
class Counter:
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Histogram:
    help: str
    buckets: tuple[float, ...]
    labels: tuple[str, ...] = ()


ENGINE = ("engine",)
TENANT = ("tenant", "priority")
FILES = ("output", "error")  # of a batch

COUNTERS: dict[str, Counter] = {
    "vllm:prompt_tokens": Counter("Prompt tokens computed", ENGINE),
    "vllm:generation_tokens": Counter("Tokens sampled", ENGINE),
    "vllm:prefix_cache_queries": Counter("Prompt tokens looked up in the prefix cache", ENGINE),
    "vllm:prefix_cache_hits": Counter("Prompt tokens found there", ENGINE),
    "vllm:spec_decode_num_drafts": Counter("Drafts that an engine verified", ENGINE),
    "vllm:spec_decode_num_draft_tokens": Counter("Tokens of these drafts", ENGINE),
    "vllm:spec_decode_num_accepted_tokens": Counter("Tokens of these drafts that were right", ENGINE),
    "vllm:spec_decode_num_accepted_tokens_per_pos": Counter(
        "Tokens of these drafts that were right, by their place in the draft, from 0", (*ENGINE, "position")
    ),
    "vllm:num_preemptions": Counter("Requests whose KV blocks were taken for others, to be computed anew", ENGINE),
    "vllm:request_success": Counter("Requests that ended at an engine, by reason", (*ENGINE, "finished_reason")),
    "vllm:admission_rejections": Counter("Requests refused before they entered the pool, by reason", ("reason",)),
    "orca:tenant_requests": Counter("Requests that ended at an engine, by reason", (*TENANT, "finished_reason")),
    "orca:tenant_prompt_tokens": Counter("Prompt tokens of these requests", TENANT),
    "orca:tenant_generation_tokens": Counter("Output tokens of these requests, counted when they end", TENANT),
    "orca:iterations": Counter("Iterations of the model", ENGINE),
    "orca:mixed_iterations": Counter("Iterations with initiation and increment requests in one batch", ENGINE),
    "orca:reclaimed_requests": Counter("Requests taken from a dead scheduler's seat"),
    "orca:engine_losses": Counter("Times an engine died under its scheduler", ENGINE),
    "orca:scheduler_faults": Counter(
        "Times scheduling raised an exception; the request it was about got a strike", ENGINE
    ),
    "orca:engine_stuck": Counter("Engines that lived and finished nothing, or were stopped; lost, too", ENGINE),
    "orca:scheduler_stuck": Counter("Schedulers that were stopped while they held a seat, and were killed"),
    "orca:timed_out_requests": Counter("Requests that ended because nothing of them had begun by their deadline"),
    "orca:poisoned_requests": Counter(
        "Requests that ended because engines or schedulers died, or schedulers failed, under them"
    ),
    "orca:batch_lines": Counter("Lines of batches that were answered, by the file they go to", ("file",)),
    "orca:resent_tokens": Counter("Tokens committed again because the pool had lost them", ENGINE),
}

HISTOGRAMS: dict[str, Histogram] = {
    "vllm:time_to_first_token_seconds": Histogram(
        "From the gateway's receipt to the first token sent", _SECONDS, TENANT
    ),
    "vllm:inter_token_latency_seconds": Histogram("Between tokens of a request, as the gateway gets them", _SECONDS),
    "vllm:request_time_per_output_token_seconds": Histogram("(end - first token) / (tokens - 1)", _SECONDS),
    "vllm:e2e_request_latency_seconds": Histogram("From receipt to the end", _LATENCY),
    "vllm:request_queue_time_seconds": Histogram(
        "From a request's arrival in the pool to its first iteration", _PHASE, TENANT
    ),
    "vllm:request_prefill_time_seconds": Histogram("From its first iteration to its first token", _PHASE, ENGINE),
    "vllm:request_decode_time_seconds": Histogram("From its first token to its end", _PHASE, ENGINE),
    "vllm:request_inference_time_seconds": Histogram("From its first iteration to its end", _PHASE, ENGINE),
    "vllm:request_prompt_tokens": Histogram("Prompt tokens of a request", _TOKENS),
    "vllm:request_generation_tokens": Histogram("Output tokens of a request", _TOKENS),
    "vllm:request_max_num_generation_tokens": Histogram("Output tokens of the longest choice of a request", _TOKENS),
    "vllm:request_params_max_tokens": Histogram("The most output tokens that a sequence may have", _TOKENS),
    "vllm:iteration_tokens_total": Histogram(
        "Prompt tokens computed and tokens sampled in an iteration", _TOKENS, ENGINE
    ),
    "orca:iteration_seconds": Histogram("Seconds an iteration took, seen by the scheduler", _SECONDS, ENGINE),
    "orca:iteration_requests": Histogram("Requests in an iteration", _BATCH, ENGINE),
    "orca:exchange_seconds": Histogram("Seconds of a pool exchange, seen by the scheduler", _SECONDS, ENGINE),
    "orca:gateway_loop_lag_seconds": Histogram("How late a gateway's event loop woke its heartbeat", _SECONDS),
}

# Gauges of a pool
POOL_GAUGES: dict[str, str] = {
    "orca:pool_answers": "1 while the pool's server answers, of several shards 0 while one does not",
    "vllm:num_requests_running": "Sequences held by a scheduler",
    "vllm:num_requests_waiting": "Sequences waiting in the pool",
    "orca:ended_requests": "Ended sequences that can still be read",
    "orca:pool_bytes": "Bytes the pool counts for its sequences",
    "orca:pool_bytes_limit": "Most bytes of requests that the pool accepts: `max_pool_bytes`",
    "orca:pool_full": "1 while the memory of the pool's server is full and it refuses requests",
    "orca:engines": "Seats with a living scheduler",
    "orca:engines_wanted": "Engines that there are to be, see docs/fault_tolerance.md",
    "orca:gateways": "Registered gateways",
    "orca:gateways_wanted": "Gateways that the settings ask for",
    "orca:numerics": "Kinds of numerics of the engines; tokens differ between them",
    "orca:fallback_engines": "Engines on transformers' own layers in place of a faster path",
}

# What an engine says of itself when a scheduler attaches
FIGURES: dict[str, str] = {
    "orca:weight_bytes": "Memory of an engine's weights; of several ranks that of one",
    "orca:weights_info": "1 for each engine: the label `weights` says how it keeps them",
    "vllm:cache_config_info": "1 for each engine: its KV blocks in the labels `block_size` and `num_gpu_blocks`",
}

# Of a server with adapters
LORA = "vllm:lora_requests_info"
INFOS: dict[str, str] = {
    LORA: "When it was read (Unix seconds); its labels name the adapters that requests have, and how many are loaded"
}

# What each gateway reports of itself with its heartbeat: name in the pool -> (name of the metric, help)
GATEWAY_GAUGES: dict[str, tuple[str, str]] = {
    "requests": ("orca:gateway_requests", "Requests that the gateway is answering, including those that wait"),
    "memory": ("orca:gateway_memory_bytes", "Resident memory of the gateway's process"),
    "lag": ("orca:gateway_last_loop_lag_seconds", "How late its event loop woke the last heartbeat"),
}
GATEWAY_COUNTERS: dict[str, tuple[str, str]] = {
    "cpu": ("orca:gateway_cpu_seconds", "Processor time of the gateway's process since its start"),
}

# Gauges that a scheduler sends with each exchange: name in the pool -> (name of the metric, help)
SEAT_GAUGES: dict[str, tuple[str, str]] = {
    "ready": ("orca:ready", "1 while the engine can run iterations, or sleeps and wakes up for a request"),
    "sleep": ("orca:sleep_level", "0: the engine is awake; 1: asleep, 2: cold, 3: off, see docs/clusters.md"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "Share of KV blocks held, 0 to 1"),
    "paused": ("orca:paused_requests", "Requests that hold KV blocks and gave their place in the batch to others"),
    "batch_size": ("orca:batch_size", "Requests in the last iteration"),
    "peak_batch_size": ("orca:peak_batch_size", "Most requests in one iteration since the scheduler took its seat"),
    "engine_pid": ("orca:engine_pid", "The engine process that has the weights"),
    "scheduler_pid": ("orca:scheduler_pid", "The scheduler process that holds the seat"),
    "spare_ready": ("orca:spare_ready", "1 while another engine process waits to take over"),
    "spare_schedulers": ("orca:spare_schedulers", "Schedulers with everything loaded that wait for the seat"),
    # the last take-over of the seat after a scheduler or an engine died: Unix times, and a duration
    "recovery_noticed": ("orca:recovery_noticed_time_seconds", "When the death was noticed"),
    "recovery_acquired": ("orca:recovery_acquired_time_seconds", "When the seat was held again"),
    "recovery_attached": ("orca:recovery_attached_time_seconds", "When its engine was attached, with weights"),
    "recovery_loading": ("orca:recovery_loading_seconds", "How long of that the weights were loaded"),
    "recovery_first_iteration": ("orca:recovery_first_iteration_time_seconds", "When its first iteration was finished"),
}

# Gauges that not every scheduler sends: a seat without one has no such line
OPTIONAL_GAUGES: dict[str, tuple[str, str]] = {
    "token_budget": ("orca:token_budget", "Tokens of one iteration at most"),
    "waking_seconds": ("orca:waking_seconds", "How long the engine took to load its weights when it last woke up"),
}
