"""What an iteration costs: a roofline for each kind of operation, on a model split over stages and ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from load.simulation.specs import A100_40GB, ELEMENT, VOCABULARY, Gpu, Model

RequestState = tuple[int, int]  # a request's tokens computed before, and tokens to compute


@dataclass(frozen=True, slots=True)
class IterationTime:
    """Seconds in each pipeline stage, and of each hand-over to the next stage."""

    stages: tuple[float, ...]
    hand_over: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.stages) + self.hand_over * (len(self.stages) - 1)

    def leave(self, free: list[float], arrived: float) -> float:
        """When the iteration leaves the last stage, if it arrives at the first one then. `free`: when each stage is,
        which is changed."""
        for stage, seconds in enumerate(self.stages):
            free[stage] = max(arrived, free[stage]) + seconds
            arrived = free[stage] + self.hand_over
        return free[-1]


@dataclass(frozen=True, slots=True)
class PerToken:
    """Seconds of any iteration, and of each token in it."""

    fixed: float
    token: float

    def iteration(self, rows: Iterable[RequestState], sampled: int) -> IterationTime:
        return IterationTime((self.fixed + self.token * sum(tokens for _, tokens in rows),))


class Partition:
    """`model` on `stages` groups of `ranks` GPUs: the layers are split over the groups, and each layer over the GPUs of
    its group (inter-layer and intra-layer parallelism in section 4.1 of the paper).

    A stage runs each linear operation of all tokens together, bound by reading the weights or by the products; then
    attention, for each request bound by reading keys and values or by the products; and two all-reduces per layer.
    The last stage also has the output layer, for the tokens that are sampled. Nothing overlaps. Kernel launches,
    activations that stay on a GPU, embedding, norms and sampling are free.

    What an operation reads on one GPU decides the rate at which it reads. Attention of all requests in a layer is one
    operation, as in section 5 of the paper.
    """

    def __init__(self, model: Model, gpu: Gpu, ranks: int, stages: int = 1) -> None:
        assert model.layers % stages == 0, f"{model.layers} layers over {stages} stages"
        self.model, self.gpu, self.ranks, self.stages = model, gpu, ranks, stages
        self._layers = model.layers // stages
        self._multiply = 2 / (gpu.rate * ranks)  # seconds per multiply-add
        self._layer = [self._costs(params) for params in model.linear]
        self._head = [self._costs(VOCABULARY * model.hidden)]
        self._slot = ELEMENT * 2 * model.hidden / ranks  # bytes of a token in a layer of one GPU
        self._pair = 2 * model.hidden * self._multiply

    def iteration(self, rows: Iterable[RequestState], sampled: int) -> IterationTime:
        """The time of an iteration over `rows` that samples `sampled` tokens."""
        rows = list(rows)
        tokens = sum(new for _, new in rows)
        size = ELEMENT * self.model.hidden * tokens
        reduce = 2 * self.gpu.all_reduce(size, self.ranks)
        stage = self._layers * (_linear(self._layer, tokens) + self._attention(rows) + reduce)
        last = stage + (_linear(self._head, sampled) if sampled else 0.0)
        hand_over = self.gpu.hand_over(size) if self.stages > 1 else 0.0
        return IterationTime((stage,) * (self.stages - 1) + (last,), hand_over)

    def _costs(self, params: int) -> tuple[float, float]:
        """Seconds of a linear operation: to read its weights, and of the products of one token."""
        size = ELEMENT * params / self.ranks
        return size / self.gpu.read_rate(size), params * self._multiply

    def _attention(self, rows: list[RequestState]) -> float:
        """Seconds of attention in a layer."""
        whole, seconds = self._slot * sum(computed + new for computed, new in rows), 0.0
        for computed, new in rows:
            size = self._slot * (computed + new)
            pairs = new * computed + new * (new + 1) // 2
            seconds += max(size / self.gpu.read_rate(whole), self._pair * pairs)
        return seconds

    @property
    def num_slots(self) -> int:
        """The paper's `n_slots`: the number of tokens whose keys and values fit beside the weights."""
        left = self.gpu.memory * self.ranks * self.stages - ELEMENT * self.model.params
        assert left > 0, f"{self.model.name} does not fit into {self.ranks * self.stages} {self.gpu.name}"
        return int(left / self.model.slot_bytes)


def _linear(operations: list[tuple[float, float]], tokens: int) -> float:
    """Seconds of these linear operations with this many tokens."""
    return sum(max(read, multiply * tokens) for read, multiply in operations)


# the models of the paper's Table 1 on its machines
TABLE_1 = {
    "13B": Partition(Model("13B", 40, 5_120), A100_40GB, ranks=1),
    "101B": Partition(Model("101B", 80, 10_240), A100_40GB, ranks=8),
    "175B": Partition(Model("175B", 96, 12_288), A100_40GB, ranks=8, stages=2),
    "341B": Partition(Model("341B", 120, 15_360), A100_40GB, ranks=8, stages=4),
}


def execution_seconds(partition: Partition, batch: int, prompt: int, output: int) -> float:
    """Seconds of a batch of equal requests, one iteration after the other (paper, section 6.1 and figure 9)."""
    first = partition.iteration([(0, prompt)] * batch, batch).total
    rest = (partition.iteration([(prompt + i, 1)] * batch, batch).total for i in range(output - 1))
    return first + sum(rest)
