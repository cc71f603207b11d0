"""MachineRates: what this machine reached in this run, in bytes and in operations a second."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import torch

from load.bench.engine.bandwidth import measure_bandwidth
from load.bench.engine.caches import last_level_cache
from load.bench.engine.multiplying import ways
from load.bench.engine.timing import device_seconds
from services.engine import placement

ROW_COUNTS = tuple(2**i for i in range(12))  # 1 to 2,048
CUDA_ROW_COUNTS = (*ROW_COUNTS, 4096, 8192)
CACHES = 2  # weights are taken in turn from so many times what the last cache holds
PARTS = ", in parts"  # said of a way that was fastest with fewer rows


@dataclass(frozen=True, slots=True)
class MatrixRate:
    """Operations a second at a row count, the way that reached them, and what each way reached; and what that way has
    in the median window, where other work shows."""

    rows: int
    operations: float
    way: str
    reached: dict[str, float] = field(default_factory=dict)
    median: float = 0.0


@dataclass(frozen=True, slots=True)
class MachineRates:
    """`bandwidth` in bytes a second; `matrix` by row count, ascending."""

    bandwidth: float
    matrix: tuple[MatrixRate, ...]

    @property
    def best(self) -> float:
        """The matrix rate at the best row count."""
        return max(rate.operations for rate in self.matrix)

    def usual(self) -> MachineRates:
        """The matrix rates in median windows, which other work slows too. The bandwidth is the best."""
        medians = (replace(rate, operations=rate.median) for rate in self.matrix)
        return MachineRates(self.bandwidth, tuple(accumulate(medians, _at_least)))

    def at(self, rows: int) -> float:
        """The matrix rate at `rows`: linear between those measured, the nearest one's outside of them."""
        return float(np.interp(rows, [m.rows for m in self.matrix], [m.operations for m in self.matrix]))


def measure_rates(device: torch.device, stored: torch.dtype, inputs: int, outputs: int) -> MachineRates:
    """The rates for products [rows, inputs] x [inputs, outputs] by weights stored in this dtype."""
    bandwidth = max(measure_bandwidth(device).values())
    counts = CUDA_ROW_COUNTS if device.type == "cuda" else ROW_COUNTS
    measured = (_matrix_rate(device, stored, inputs, outputs, rows) for rows in counts)
    return MachineRates(bandwidth, tuple(accumulate(measured, _at_least)))


def _at_least(fewer: MatrixRate, more: MatrixRate) -> MatrixRate:
    """More rows can be multiplied in parts of fewer, so they are as fast at least."""
    if more.operations >= fewer.operations:
        return more
    way = fewer.way.removesuffix(PARTS) + PARTS
    return MatrixRate(more.rows, fewer.operations, way, more.reached, fewer.median)


def _matrix_rate(device: torch.device, stored: torch.dtype, inputs: int, outputs: int, rows: int) -> MatrixRate:
    """The best way at this row count, its weights read from memory."""
    copies = -(-CACHES * last_level_cache(device) // (inputs * outputs * int(stored.itemsize)))
    native = device.type == "cuda" or placement.cpu_multiplies_bfloat16()
    dtype = stored if stored.is_floating_point and native else torch.float32
    left = torch.randn(rows, inputs, device=device, dtype=dtype)
    weight = torch.randn(outputs, inputs, device=device, dtype=dtype)
    reached, medians = {}, {}
    with torch.inference_mode():
        for name, way in ways(device, dtype, stored).items():
            best, median = device_seconds([way(left, weight.clone()) for _ in range(copies)], device)
            reached[name], medians[name] = (2 * rows * inputs * outputs / seconds for seconds in (best, median))
    fastest = max(reached, key=reached.__getitem__)
    return MatrixRate(rows, reached[fastest], fastest, reached, medians[fastest])
