"""transformers' `generate` and its continuous batching beside the engine: the same weights, requests and machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from load.bench.gpu.bench import Bench, Found
from load.bench.gpu.budget import Budget
from load.bench.gpu.iterations import CUT
from load.in_process import Setup, run_trace
from load.markdown import table
from load.simulation.traces import Size, paper
from load.workloads import Job, any_prompt
from services.engine.stock.loading import make_model
from services.scheduling import Knobs

BATCH = 32  # of `generate`, and max batch size of ours; continuous batching takes what it chooses itself
EQUAL = Size(128, 32)  # of section 6.1
PAGE = 256  # tokens of a block of its cache
CONTINUOUS_TOKENS = 4096  # of one of its iterations
SHARE = 0.5  # of the time that is left, at most
STOPPING = 5  # seconds that it has to end, if the time is spent before its requests are served
WAIT = 1.0  # seconds between two looks at whether the other's thread still lives

Outputs = list[list[int]]
System = Callable[[Sequence[Job]], tuple[Outputs, float]]  # and the seconds that it took


@dataclass(frozen=True, slots=True)
class Beside:
    """What a system made of a workload. `same`: requests with the tokens that ours has; in bfloat16 sums in another
    order can choose otherwise."""

    workload: str
    system: str
    requests: int
    tokens: int
    seconds: float
    same: int


def generate(bench: Bench) -> Found:
    """Ours first, then transformers' with the memory that ours has given back."""
    workloads, budget = _workloads(bench.configuration.trace), Budget(bench.budget.left * SHARE)
    found: list[Beside] = []
    ours: dict[str, Outputs] = {}
    failures: dict[str, str] = {}

    def measure(name: str, system: System) -> None:
        system([Job(any_prompt(16, 0), 2)])  # what comes only once
        for workload, jobs in workloads.items():
            if budget.spent:
                return
            outputs, seconds = system(jobs)
            expected = ours.setdefault(workload, outputs)
            same = sum(one == other for one, other in zip(outputs, expected, strict=True))
            found.append(Beside(workload, name, len(jobs), sum(map(len, outputs)), seconds, same))

    measure("orca", _ours(bench))
    bench.release()
    model = make_model(bench.config, bench.tensors, bench.dtype, bench.device)
    model.set_attn_implementation("sdpa")
    for name, system in (("generate", _padded(model)), ("continuous batching", _continuous(model, budget))):
        try:
            measure(f"transformers, {name}", system)
        except Exception as error:  # whatever fails in another system must not cost what was measured
            failures[name] = f"{type(error).__name__}: {error}"
    lines = [f"transformers, {name} failed: {why}" for name, why in failures.items()]
    text = "\n\n".join([_table(found), *lines, *([CUT] if budget.spent else [])])
    return Found(text, {"measured": [asdict(one) for one in found], "failed": failures})


def _workloads(trace: int) -> dict[str, list[Job]]:
    equal = [EQUAL] * min(BATCH, trace)
    named = {f"{len(equal)} x ({EQUAL.prompt} in, {EQUAL.output} out)": equal, "the paper's": paper(trace)}
    return {
        name: [Job(any_prompt(size.prompt, seed), size.output) for seed, size in enumerate(sizes)]
        for name, sizes in named.items()
    }


def _ours(bench: Bench) -> System:
    def run(jobs: Sequence[Job]) -> tuple[Outputs, float]:
        done = run_trace(bench.engine, jobs, Setup(Knobs(BATCH)))
        return done.outputs, done.seconds

    return run


def _padded(model: Any) -> System:
    """`generate`: a batch at a time, prompts padded to the longest, all run until the last one has ended."""

    def run(jobs: Sequence[Job]) -> tuple[Outputs, float]:
        began = time.perf_counter()
        batches = [_generate(model, jobs[first : first + BATCH]) for first in range(0, len(jobs), BATCH)]
        return [output for batch in batches for output in batch], time.perf_counter() - began

    return run


def _generate(model: Any, jobs: Sequence[Job]) -> Outputs:
    width, most = max(len(job.prompt) for job in jobs), max(job.max_new_tokens for job in jobs)
    ids = torch.tensor([[0] * (width - len(job.prompt)) + job.prompt for job in jobs], device=model.device)
    lengths = torch.tensor([len(job.prompt) for job in jobs], device=model.device)
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
    return [row[: job.max_new_tokens] for row, job in zip(out[:, width:].tolist(), jobs, strict=True)]


def _continuous(model: Any, budget: Budget) -> System:
    """What `generate_batch` wraps: its manager takes a limit for each request, `generate_batch` one for all.

    It has blocks for all requests at once: left to itself, it makes a mask over all memory that is free. Its set-up is
    not counted.
    """

    def run(jobs: Sequence[Job]) -> tuple[Outputs, float]:
        most = max(job.max_new_tokens for job in jobs)
        config = GenerationConfig(max_new_tokens=most, do_sample=False, eos_token_id=-1, pad_token_id=0)
        blocks = sum(-(-(len(job.prompt) + job.max_new_tokens) // PAGE) for job in jobs)
        memory = ContinuousBatchingConfig(num_blocks=1 + blocks, max_batch_tokens=CONTINUOUS_TOKENS)
        with model.continuous_batching_context_manager(
            generation_config=config, continuous_batching_config=memory, timeout=STOPPING
        ) as manager:
            began = time.perf_counter()
            ids = [manager.add_request(job.prompt, max_new_tokens=job.max_new_tokens, eos_token_id=-1) for job in jobs]
            outputs = _collect(manager, ids, budget)
            seconds = time.perf_counter() - began
        return outputs, seconds

    return run


def _collect(manager: Any, ids: Sequence[str], budget: Budget) -> Outputs:
    """Raises RuntimeError where a request fails, the manager's thread ends or the time is spent."""
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


def _table(found: Sequence[Beside]) -> str:
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
