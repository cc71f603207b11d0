"""transformers' `generate` and its continuous batching compared with the engine, on the same weights and requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from load.bench.gpu.bench import CUT, Bench, Budget, PartResult
from load.in_process import Setup, run_in_process
from load.report import table
from load.trace import Request
from load.workloads import any_prompt, sized
from services.engine.backends.stock.loading import make_model
from services.scheduling import Knobs

BATCH = 32  # of `generate`, and our max batch size; continuous batching chooses its own
EQUAL = (128, 32)  # tokens in and out, as in section 6.1
PAGE = 256  # tokens of a block of continuous batching's cache
SHARE = 0.5  # of the time that is left, at most
STOPPING = 5  # seconds that continuous batching has to stop once the time is spent
WAIT = 1.0  # seconds after which its thread is checked

Outputs = list[list[int]]
Runner = Callable[[Sequence[Request]], tuple[Outputs, float]]  # returns also the seconds that it took


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a system for a workload. `same`: how many requests have our tokens; in bfloat16 another order of
    sums can choose another token."""

    workload: str
    system: str
    requests: int
    tokens: int
    seconds: float
    same: int


def generate(bench: Bench) -> PartResult:
    """Measure our engine first, then transformers with the memory that our engine has freed."""
    workloads, budget = _workloads(bench), Budget(bench.budget.left * SHARE)
    found: list[Comparison] = []
    ours: dict[str, Outputs] = {}
    failures: dict[str, str] = {}

    def measure(name: str, system: Runner) -> None:
        system([Request(any_prompt(16, 0), 2)])  # costs that occur only once
        for workload, requests in workloads.items():
            if budget.spent:
                return
            outputs, seconds = system(requests)
            expected = ours.setdefault(workload, outputs)
            same = sum(one == other for one, other in zip(outputs, expected, strict=True))
            found.append(Comparison(workload, name, len(requests), sum(map(len, outputs)), seconds, same))

    measure("orca", _ours(bench))
    bench.release()
    model = make_model(bench.config, bench.tensors, bench.dtype, bench.device)
    model.set_attn_implementation("sdpa")
    for name, system in (
        ("generate", _padded(model)),
        ("continuous batching", _continuous(model, budget, bench.scale.continuous_tokens)),
    ):
        try:
            measure(f"transformers, {name}", system)
        except Exception as error:  # a failure of another system must not lose what was measured
            failures[name] = f"{type(error).__name__}: {error}"
    lines = [f"transformers, {name} failed: {why}" for name, why in failures.items()]
    text = "\n\n".join([_table(found), *lines, *([CUT] if budget.spent else [])])
    return PartResult(text, {"measured": [asdict(one) for one in found], "failed": failures})


def _workloads(bench: Bench) -> dict[str, list[Request]]:
    trace, (prompt, output) = bench.configuration.trace, EQUAL
    equal = [sized(prompt, output)] * min(BATCH, trace)
    named = {f"{len(equal)} x ({prompt} in, {output} out)": equal, "the paper's": bench.scale.lengths(trace)}
    return {
        name: [replace(one, prompt=any_prompt(len(one.prompt), seed)) for seed, one in enumerate(requests)]
        for name, requests in named.items()
    }


def _ours(bench: Bench) -> Runner:
    def run(requests: Sequence[Request]) -> tuple[Outputs, float]:
        done = run_in_process(bench.engine, requests, Setup(Knobs(BATCH)))
        return done.outputs, done.seconds

    return run


def _padded(model: Any) -> Runner:
    """`generate`: one batch at a time, prompts padded to the longest, all computed until the last has ended."""

    def run(requests: Sequence[Request]) -> tuple[Outputs, float]:
        began = time.perf_counter()
        batches = [_generate(model, requests[first : first + BATCH]) for first in range(0, len(requests), BATCH)]
        return [output for batch in batches for output in batch], time.perf_counter() - began

    return run


def _generate(model: Any, requests: Sequence[Request]) -> Outputs:
    width, most = max(len(request.prompt) for request in requests), max(request.max_new_tokens for request in requests)
    ids = torch.tensor(
        [[0] * (width - len(request.prompt)) + request.prompt for request in requests], device=model.device
    )
    lengths = torch.tensor([len(request.prompt) for request in requests], device=model.device)
    mask = (torch.arange(width, device=model.device) >= width - lengths[:, None]).long()
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=most,
            min_new_tokens=most,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return [row[: request.max_new_tokens] for row, request in zip(out[:, width:].tolist(), requests, strict=True)]


def _continuous(model: Any, budget: Budget, tokens: int) -> Runner:
    """The manager behind `generate_batch`: it takes a limit for each request, `generate_batch` one limit for all.

    It has blocks for all requests at once; by default it makes a mask over all memory that is free. Its set-up is not
    counted.
    """

    def run(requests: Sequence[Request]) -> tuple[Outputs, float]:
        most = max(request.max_new_tokens for request in requests)
        config = GenerationConfig(max_new_tokens=most, do_sample=False, eos_token_id=-1, pad_token_id=0)
        blocks = sum(-(-(len(request.prompt) + request.max_new_tokens) // PAGE) for request in requests)
        memory = ContinuousBatchingConfig(num_blocks=1 + blocks, max_batch_tokens=tokens)
        with model.continuous_batching_context_manager(
            generation_config=config, continuous_batching_config=memory, timeout=STOPPING
        ) as manager:
            began = time.perf_counter()
            ids = [
                manager.add_request(request.prompt, max_new_tokens=request.max_new_tokens, eos_token_id=-1)
                for request in requests
            ]
            outputs = _collect(manager, ids, budget)
            seconds = time.perf_counter() - began
        return outputs, seconds

    return run


def _collect(manager: Any, ids: Sequence[str], budget: Budget) -> Outputs:
    """Raises RuntimeError if a request fails, the manager's thread ends or the time is spent."""
    ended: dict[str, list[int]] = {}
    while len(ended) < len(ids):
        if budget.spent:
            raise RuntimeError(f"the time is spent with {len(ended)} of {len(ids)} requests")
        result = manager.get_result(timeout=WAIT)
        if result is None:
            if not manager.is_running():
                raise RuntimeError(f"its thread has ended with {len(ended)} of {len(ids)} requests")
        elif result.is_finished():
            if result.error is not None:
                raise RuntimeError(f"{result.request_id}: {result.error}")
            ended[result.request_id] = list(result.generated_tokens)
    return [ended[id] for id in ids]


def _table(found: Sequence[Comparison]) -> str:
    rows = [
        [
            one.workload,
            one.system,
            f"{one.seconds:.2f}",
            f"{one.tokens / one.seconds:,.0f}",
            f"{one.same}/{one.requests}",
        ]
        for one in found
    ]
    return table(["workload", "system", "seconds", "output tokens/s", "same tokens as ours"], rows)
