"""The models of the paper's Table 1, on its machines."""

from __future__ import annotations

from load.simulation.cost import Partition
from load.simulation.hardware import A100_40GB
from load.simulation.models import GPT_13B, GPT_101B, GPT_175B, GPT_341B

TABLE_1 = {
    "13B": Partition(GPT_13B, A100_40GB, ranks=1, stages=1),
    "101B": Partition(GPT_101B, A100_40GB, ranks=8, stages=1),
    "175B": Partition(GPT_175B, A100_40GB, ranks=8, stages=2),
    "341B": Partition(GPT_341B, A100_40GB, ranks=8, stages=4),
}


def execution_seconds(partition: Partition, batch: int, prompt: int, output: int) -> float:
    """What a batch of equal requests takes, one iteration after the other (paper, section 6.1 and figure 9)."""
    first = partition.iteration([(0, prompt)] * batch, batch).total
    rest = (partition.iteration([(prompt + i, 1)] * batch, batch).total for i in range(output - 1))
    return first + sum(rest)
