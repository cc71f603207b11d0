"""Requests of the paper's trace at once: exact lengths, and the tokens that the stock model chooses alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stock_model import likeliest, load_stock

from load.options import Options
from load.over_http import run_over_http
from load.server import OrcaServer
from load.workloads import paper

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

WHOLE = pytest.param(64, 128, marks=pytest.mark.chaos)


@pytest.mark.parametrize(("count", "longest"), [(6, 32), WHOLE])
async def test_each_output_is_what_the_stock_model_chooses_alone(server: OrcaServer, count: int, longest: int) -> None:
    """Each token is the likeliest after all before it, which is what greedy `generate()` means. `longest`: tokens."""
    requests = [replace(request, max_new_tokens=min(request.max_new_tokens, longest)) for request in paper(count)]
    before = server.metrics()
    run = await run_over_http(server.url, requests)
    after = server.metrics()
    assert [len(output) for output in run.outputs] == [request.max_new_tokens for request in requests]
    assert after["orca:mixed_iterations_total"] > before["orca:mixed_iterations_total"]
    assert after["orca:peak_batch_size"] >= 4

    model = load_stock(Options(device="cpu"))
    for answer in run.answers:
        assert answer.tokens == likeliest(model, answer.request.prompt, answer.tokens)
