"""Eight requests of the paper's trace at once: exact lengths, and the tokens of stock `generate()`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from load.server import OrcaServer
from load.workloads import paper

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


async def complete(client: httpx.AsyncClient, prompt: list[int], max_tokens: int) -> list[int]:
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "length"
    return list(choice["token_ids"])


async def test_each_output_equals_generate_alone(server: OrcaServer, default_model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    trace = paper(8, 0)
    before = server.metrics()
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        outputs = await asyncio.gather(*(complete(client, r.prompt, r.max_new_tokens) for r in trace))
    after = server.metrics()
    assert [len(o) for o in outputs] == [r.max_new_tokens for r in trace]
    assert after["orca:mixed_iterations_total"] > before["orca:mixed_iterations_total"]
    assert after["orca:peak_batch_size"] >= 4

    model = AutoModelForCausalLM.from_pretrained(default_model, dtype=torch.float32)
    for request, output in zip(trace, outputs, strict=True):
        prompt = torch.tensor([request.prompt])
        n = request.max_new_tokens
        alone = model.generate(prompt, max_new_tokens=n, min_new_tokens=n, do_sample=False, eos_token_id=None)
        assert output == alone[0, len(request.prompt) :].tolist()
