"""vLLM's benchmark of servers: what `vllm bench serve` runs, without the rest of its command line."""

from __future__ import annotations

import json
import sys

from steps import MODEL, MODEL_FOLDER, SCRATCH, URL, expect, run, step

REQUESTS = 12
BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def bench(backend: str, endpoint: str, *more: str) -> str:
    name = f"{backend}.json"
    run(
        *(sys.executable, "-c", BENCH, "--backend", backend, "--base-url", URL, "--endpoint", endpoint),
        *("--model", MODEL_FOLDER, "--served-model-name", MODEL, "--dataset-name", "random"),
        *("--input-len", 32, "--output-len", 16, "--num-prompts", REQUESTS, "--max-concurrency", 4),
        *("--save-result", "--result-dir", SCRATCH, "--result-filename", name, "--disable-tqdm", *more),
    )
    result = json.loads((SCRATCH / name).read_text())
    expect(result["completed"] == REQUESTS and not result.get("failed"), result)
    expect(result["total_output_tokens"] == REQUESTS * 16 and result["mean_ttft_ms"] > 0, result)
    return f"{result['completed']} of {REQUESTS} requests, {result['total_output_tokens']} tokens"


@step("completions")
def _() -> str:
    return bench("openai", "/v1/completions", "--ignore-eos")


@step("chat")
def _() -> str:
    return bench("openai-chat", "/v1/chat/completions", "--ignore-eos")


@step("responses")
def _() -> str:
    return bench("openai-responses", "/v1/responses", "--ignore-eos")
