"""EvalScope's benchmark of servers."""

from __future__ import annotations

import json

from steps import BASE_URL, BIN, MODEL, MODEL_FOLDER, SCRATCH, expect, run, step

REQUESTS = 8


def evalscope(api: str, path: str, *more: str) -> str:
    out = SCRATCH / "-".join((api, path.replace("/", "-"), *more)).replace("--", "")
    run(
        *(BIN / "evalscope", "perf", "--model", MODEL, "--url", BASE_URL + path, "--api", api),
        *("--tokenizer-path", MODEL_FOLDER, "--dataset", "random", "--min-prompt-length", 32),
        *("--max-prompt-length", 32, "--prefix-length", 0, "--max-tokens", 16, "--min-tokens", 16),
        *("--number", REQUESTS, "--parallel", 2, "--outputs-dir", out, "--no-timestamp", *more),
    )
    summary = json.loads(next(out.rglob("benchmark_summary.json")).read_text())
    expect(summary, summary)
    done = next(value for name, value in summary.items() if "succe" in name.lower())
    failed = next(value for name, value in summary.items() if "fail" in name.lower())
    expect(int(done) == REQUESTS and int(failed) == 0, summary)
    return f"{done} of {REQUESTS} requests"


@step("chat stream")
def _() -> str:
    return evalscope("openai", "/chat/completions", "--stream")


@step("chat")
def _() -> str:
    return evalscope("openai", "/chat/completions", "--no-stream")


@step("completions stream")
def _() -> str:
    return evalscope("openai", "/completions", "--stream", "--no-apply-chat-template")


@step("responses stream")
def _() -> str:
    return evalscope("responses", "/responses", "--stream")
