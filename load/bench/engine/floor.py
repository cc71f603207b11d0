"""Floor: the least an iteration can take on a machine of these rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from load.bench.engine.machine_rates import MachineRates
from load.bench.engine.model_shape import ModelShape
from load.bench.engine.operations import KINDS, Kind, Operation, Span, operations


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds by kind of operation, and those that moving all its bytes takes alone."""

    by_kind: dict[Kind, float]
    moving: float

    @property
    def seconds(self) -> float:
        return sum(self.by_kind.values())


def floor(shape: ModelShape, rates: MachineRates, iterations: Iterable[Sequence[Span]]) -> Floor:
    """Of all these iterations together: the sum over their operations of max(bytes / bandwidth, flops / rate)."""
    by_kind: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
    moved = 0
    for spans in iterations:
        for operation in operations(shape, spans):
            by_kind[operation.kind] += seconds(operation, rates)
            moved += operation.bytes
    return Floor(by_kind, moved / rates.bandwidth)


def seconds(operation: Operation, rates: MachineRates) -> float:
    """The least this operation can take."""
    rate = rates.at(operation.rows) if operation.rows else rates.best
    return max(operation.bytes / rates.bandwidth, operation.flops / rate)
