"""Eight requests of the paper's trace at once: exact lengths, and the tokens of stock `generate()`."""

from __future__ import annotations

import pytest

from load.server import OrcaServer
from load.stream_client import run_trace
from load.verify import alone, load_stock
from load.workloads import paper

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


async def test_each_output_equals_generate_alone(server: OrcaServer) -> None:
    jobs = paper(8)
    before = server.metrics()
    _, streams = await run_trace(server.url, jobs)
    after = server.metrics()
    assert [len(s.token_ids) for s in streams] == [job.max_new_tokens for job in jobs]
    assert after["orca:mixed_iterations_total"] > before["orca:mixed_iterations_total"]
    assert after["orca:peak_batch_size"] >= 4

    model = load_stock("default")
    for job, stream in zip(jobs, streams, strict=True):
        assert stream.token_ids == alone(model, job)
