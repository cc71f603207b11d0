"""Six requests of the paper's trace at once: exact lengths, and the tokens that the stock model chooses alone.

`make verify` runs the whole trace.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from load.options import Options
from load.server import OrcaServer
from load.stock import load_stock
from load.stream_client import run_trace
from load.workloads import paper

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LONGEST = 32  # tokens


async def test_each_output_is_what_the_stock_model_chooses_alone(server: OrcaServer) -> None:
    """Each token is the most likely one after all before it, as in greedy `generate()` (see `make verify`)."""
    jobs = [replace(job, max_new_tokens=min(job.max_new_tokens, LONGEST)) for job in paper(6)]
    before = server.metrics()
    _, streams = await run_trace(server.url, jobs)
    after = server.metrics()
    assert [len(s.token_ids) for s in streams] == [job.max_new_tokens for job in jobs]
    assert after["orca:mixed_iterations_total"] > before["orca:mixed_iterations_total"]
    assert after["orca:peak_batch_size"] >= 4

    model = load_stock(Options(device="cpu"))
    for job, stream in zip(jobs, streams, strict=True):
        assert stream.token_ids == likeliest(model, job.prompt, stream.token_ids)


def likeliest(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> list[int]:
    """The most likely token at the place of each of `tokens`, given the prompt and the tokens before it."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + tokens])).logits[0]
    return logits[len(prompt) - 1 : -1].argmax(-1).tolist()
