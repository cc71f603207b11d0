"""NVIDIA's AIPerf over completions, chat, responses and Anthropic's messages, streaming and whole."""

from __future__ import annotations

import json

from steps import BIN, MODEL, MODEL_FOLDER, SCRATCH, URL, expect, run, step

REQUESTS = 8


def aiperf(kind: str, *more: str) -> str:
    out = SCRATCH / "-".join((kind, *more)).replace("--", "")
    run(
        *(BIN / "aiperf", "profile", "--model", MODEL, "--url", URL, "--endpoint-type", kind),
        *("--tokenizer", MODEL_FOLDER, "--isl", 32, "--osl", 16, "--concurrency", 2, "--request-count", REQUESTS),
        *("--num-prompts", REQUESTS, "--output-artifact-dir", out, "--ui-type", "none", *more),
        HF_HUB_OFFLINE="",  # where it is set, AIPerf takes the tokenizer's folder for a name on the hub
    )
    result = json.loads(next(out.rglob("profile_export_aiperf.json")).read_text())
    expect(result["request_count"]["avg"] == REQUESTS and not result.get("error_summary"), result)
    return f"{REQUESTS} of {REQUESTS} requests"


for endpoint in ("completions", "chat", "responses", "messages"):

    @step(f"{endpoint} stream")
    def _(kind: str = endpoint) -> str:
        return aiperf(kind, "--streaming")


@step("chat")
def _() -> str:
    return aiperf("chat")


@step("chat stream with usage in each chunk")
def _() -> str:
    return aiperf("chat", "--streaming", "--use-server-token-count", "--per-chunk-usage")
