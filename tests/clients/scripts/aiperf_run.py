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
    )
    result = json.loads(next(out.rglob("profile_export_aiperf.json")).read_text())
    expect(result["request_count"]["avg"] == REQUESTS and not result.get("error_summary"), result)
    return f"{REQUESTS} of {REQUESTS} requests"


for name, kind in (("completions", "completions"), ("chat", "chat"), ("responses", "responses"), ("Anthropic's messages", "messages")):

    @step(f"{name}, stream")
    def _(kind: str = kind) -> str:
        return aiperf(kind, "--streaming")


@step("chat, whole")
def _() -> str:
    return aiperf("chat")


@step("chat, usage in each chunk")
def _() -> str:
    return aiperf("chat", "--streaming", "--use-server-token-count", "--per-chunk-usage")
