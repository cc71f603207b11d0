"""The paper's baseline: a scheduler that batches requests, on an instance of FasterTransformer (sections 3, 4.2, 6.2).

The model follows what the paper says of it:

- the scheduler takes at most `max_batch_size` requests from its queue whenever the instance is idle;
- the batch is cut into micro-batches, which follow each other through the pipeline (figure 8b);
- the first iteration processes all requests "as if they all had the same input length as the shortest one". The
  rest of the longer inputs is processed one token per iteration, like generated tokens;
- all requests of the batch are computed until the last one has ended, and only then are they returned;
- each request reserves keys and values for the model's whole length, which bounds the batch (section 6.1).

Its control messages over NCCL, which cost the paper's 175B model up to 47% (section 6.1), are free here.
"""

from __future__ import annotations

from load.simulation.cost import Partition
from load.simulation.engine import Cost
from load.simulation.specs import MAX_MODEL_LEN
from load.trace import Answer, Request


def largest_batch(partition: Partition) -> int:
    """The number of requests that fit into memory."""
    return partition.num_slots // MAX_MODEL_LEN


def serve(trace: list[Request], cost: Cost, max_batch_size: int, microbatch_size: int) -> list[Answer]:
    """Serve `trace`, which is in order of arrival, to its end; answers have times and no tokens."""
    served: list[Answer] = []
    idle_at = 0.0
    while len(served) < len(trace):
        first = len(served)
        begin = max(idle_at, trace[first].at)
        batch = [request for request in trace[first : first + max_batch_size] if request.at <= begin]
        idle_at = begin + batch_seconds(batch, cost, microbatch_size)
        served += [Answer(request, request.at, times=[idle_at] * request.max_new_tokens) for request in batch]
    return served


def batch_seconds(batch: list[Request], cost: Cost, microbatch_size: int) -> float:
    """Seconds from the start of a batch's first iteration to the end of its last."""
    shortest = min(len(request.prompt) for request in batch)
    longest = max(len(request.prompt) + request.max_new_tokens for request in batch)
    rows = [len(batch[i : i + microbatch_size]) for i in range(0, len(batch), microbatch_size)]
    left: list[float] = [0.0] * len(rows)  # when each micro-batch left the last stage
    free: list[float] = []  # when each stage will be free
    for known in range(shortest, longest):
        new = (0, shortest) if known == shortest else (known - 1, 1)
        for micro, count in enumerate(rows):
            time = cost.iteration([new] * count, count)
            free = free or [0.0] * len(time.stages)
            left[micro] = time.leave(free, left[micro])
    return max(left)
