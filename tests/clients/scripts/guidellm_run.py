"""GuideLLM over completions, chat and responses."""

from __future__ import annotations

import json

from steps import BIN, MODEL, MODEL_FOLDER, SCRATCH, URL, expect, run, step

REQUESTS = 8


def guidellm(path: str) -> str:
    report = SCRATCH / f"{path.replace('/', '-')}.json"
    run(
        *(BIN / "guidellm", "run"),
        *("--backend", f"kind=openai_http,target={URL},model={MODEL},request_format={path}"),
        *("--profile", "kind=concurrent,streams=[2]"),
        *("--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={MODEL_FOLDER}"),
        *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16"),
        *("--output", f"kind=json,path={report}", "--disable-console-interactive"),
    )
    metrics = json.loads(report.read_text())["benchmarks"][0]["metrics"]
    totals = metrics["request_totals"]
    expect(totals["successful"] == REQUESTS and totals["errored"] == 0, totals)
    return f"{totals['successful']} of {REQUESTS} requests"


@step("completions")
def _() -> str:
    return guidellm("/v1/completions")


@step("chat")
def _() -> str:
    return guidellm("/v1/chat/completions")


@step("responses")
def _() -> str:
    return guidellm("/v1/responses")
