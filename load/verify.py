"""`python -m load.verify [N]`: the paper's trace over HTTP in float32, each output against stock `generate()` alone.

Prints a line per request that differs and ends with status 1 if one does. All 64 take some minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from load.server import OrcaServer
from load.stream_client import run_trace
from load.workloads import Job, paper
from services.config import Settings
from services.models import resolve


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m load.verify", description=__doc__)
    parser.add_argument("n", nargs="?", type=int, default=64, help="how many requests of the trace")
    parser.add_argument("--model", default="default", help="as `orca serve --model`")
    options = parser.parse_args()
    jobs = paper(options.n)
    with (
        tempfile.TemporaryDirectory() as folder,
        OrcaServer(Path(folder), "--model", options.model, "--dtype", "float32") as server,
    ):
        seconds, streams = asyncio.run(run_trace(server.url, jobs))
        metrics = server.metrics()
    print(
        f"{len(jobs)} requests over HTTP in {seconds:.1f} s, peak batch {metrics['orca:peak_batch_size']:.0f}, "
        f"{metrics['orca:mixed_iterations_total']:.0f} of {metrics['orca:iterations_total']:.0f} iterations mixed",
        flush=True,
    )
    model = load_stock(options.model)
    different = [i for i, (job, s) in enumerate(zip(jobs, streams, strict=True)) if alone(model, job) != s.token_ids]
    for i in different:
        print(f"request {i} differs: {len(jobs[i].prompt)} tokens in, {jobs[i].max_new_tokens} out")
    print(f"{len(jobs) - len(different)} of {len(jobs)} equal stock generate()")
    sys.exit(bool(different))


def load_stock(model: str) -> torch.nn.Module:
    """The model as transformers runs it by itself, in float32."""
    folder = resolve(model, Settings.model_fields["cache_dir"].default)
    stock: torch.nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return stock


def alone(model: torch.nn.Module, job: Job) -> list[int]:
    """What stock greedy `generate()` makes of a job, EOS ignored, nothing else in the batch."""
    n = job.max_new_tokens
    generate = model.generate
    assert callable(generate)
    out = generate(torch.tensor([job.prompt]), max_new_tokens=n, min_new_tokens=n, do_sample=False, eos_token_id=None)
    return list(out[0, len(job.prompt) :].tolist())


if __name__ == "__main__":
    main()
