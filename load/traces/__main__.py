"""`python -m load.traces`: follows one streamed request through all processes, and shows its trace as a waterfall.

It starts a collector and a server that sends its traces there. With `--kill`, the scheduler or
the engine is killed in the middle of the answer; the spare one takes over.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import tempfile
from argparse import ArgumentParser
from pathlib import Path

import httpx

from load.options import add_model
from load.server import OrcaServer
from load.traces.collector import Collector, ReceivedSpan
from load.traces.waterfall import as_svg, as_text
from services.tracing import names

PROMPT = "Tell me about the ocean."
QUICK_EXPORT = {"OTEL_BSP_SCHEDULE_DELAY": "500"}  # milliseconds, for OpenTelemetry's SDK
SPANS = [names.REQUEST, names.TENURE, names.ENGINE]


def main(arguments: list[str] | None = None) -> None:
    given = _parser().parse_args(arguments)
    os.environ.update(QUICK_EXPORT)
    with Collector() as collector, tempfile.TemporaryDirectory() as folder:
        flags = ["--model", given.model, "--otlp-traces-endpoint", collector.endpoint]
        with OrcaServer(Path(folder), *flags) as server:
            spans = follow(server, collector, given.tokens, given.kill)
    print(as_text(spans))
    if given.svg:
        killed = f", its {given.kill} killed on the way" if given.kill else ""
        given.svg.write_text(as_svg(spans, f"One request of {given.tokens} tokens{killed}"))


def follow(server: OrcaServer, collector: Collector, tokens: int, kill: str = "") -> list[ReceivedSpan]:
    """Stream a completion of so many tokens and return the spans of its trace. `kill`: the process, scheduler or
    engine, that is killed when half of the tokens have arrived; empty: none."""
    trace = secrets.token_hex(16)
    headers = {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01"}
    body = {"prompt": PROMPT, "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    arrived = 0
    victim = server.scheduler() if kill == "scheduler" else server.engine()  # asked before: asking takes its time
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers, timeout=120) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                arrived += 1
                if kill and arrived == tokens // 2:
                    os.kill(victim, signal.SIGKILL)
    return collector.until([*SPANS, *([names.TENURE] if kill else [])], trace)


def _parser() -> ArgumentParser:
    parser = ArgumentParser("python -m load.traces", description=__doc__)
    parser.add_argument("--tokens", type=int, default=200, help="tokens of the answer")
    parser.add_argument(
        "--kill", choices=["scheduler", "engine"], default="", help="kill this process in the middle of the answer"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also write a picture")
    add_model(parser)
    return parser


if __name__ == "__main__":
    main()
