"""What this machine reaches: the bandwidth of its memory, and its rate of matrix products by row count."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import linear

from load.bench.engine.timing import FULL, Scale, device_seconds
from load.report import table
from services.engine.backends.cpu.build import NoKernels, kernels
from services.engine.backends.cpu.packing import Packer
from services.engine.families.weights import Linear
from services.engine.startup import devices
from services.files import user_cache

WEIGHT_CACHES = 2  # weights are taken in turn from this many times the size of the last cache
BANDWIDTH_CACHES = 4  # memory is read over this many times the size of the last cache
CUDA_LEAST = 1 << 30  # bytes: less is read before all of a large GPU has started
UNKNOWN_CACHE = 64 << 20  # bytes
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
PARTS = ", in parts"  # marks a way that was fastest with fewer rows

Multiply = Callable[[], torch.Tensor]
Way = Callable[[torch.Tensor, torch.Tensor], Multiply]


@dataclass(frozen=True, slots=True)
class MatrixRate:
    """The rate of matrix products with this many rows, in operations per second.

    `way` reached it in its best window and `median` in its median one, which other work slows; `reached` has the rate
    of each way.
    """

    rows: int
    operations: float
    way: str
    reached: dict[str, float] = field(default_factory=dict)
    median: float = 0.0


@dataclass(frozen=True, slots=True)
class MachineRates:
    """`bandwidth` in bytes per second; `matrix` in order of growing row counts."""

    bandwidth: float
    matrix: tuple[MatrixRate, ...]

    @property
    def best(self) -> float:
        """The matrix rate at the best row count."""
        return max(rate.operations for rate in self.matrix)

    def usual(self) -> MachineRates:
        """The matrix rates in median windows, which other work slows as well as the engine; the best bandwidth."""
        medians = (replace(rate, operations=rate.median) for rate in self.matrix)
        return MachineRates(self.bandwidth, tuple(accumulate(medians, _at_least)))

    def at(self, rows: int) -> float:
        """The matrix rate at `rows`, interpolated linearly; constant outside of the row counts measured."""
        return float(np.interp(rows, [m.rows for m in self.matrix], [m.operations for m in self.matrix]))


def measure_rates(
    device: torch.device, stored: torch.dtype, inputs: int, outputs: int, scale: Scale = FULL
) -> MachineRates:
    """The rates for products [rows, inputs] x [inputs, outputs] with weights stored in this dtype."""
    bandwidth = max(measure_bandwidth(device, scale).values())
    counts = scale.cuda_row_counts if device.type == "cuda" else scale.row_counts
    measured = (_matrix_rate(device, stored, inputs, outputs, rows, scale) for rows in counts)
    return MachineRates(bandwidth, tuple(accumulate(measured, _at_least)))


def _at_least(fewer: MatrixRate, more: MatrixRate) -> MatrixRate:
    """More rows can be multiplied in parts of fewer rows, so they are at least as fast."""
    if more.operations >= fewer.operations:
        return more
    way = fewer.way.removesuffix(PARTS) + PARTS
    return MatrixRate(more.rows, fewer.operations, way, more.reached, fewer.median)


def _matrix_rate(
    device: torch.device, stored: torch.dtype, inputs: int, outputs: int, rows: int, scale: Scale
) -> MatrixRate:
    """The best way at this row count, with weights read from memory."""
    cache = scale.cache or last_level_cache(device)
    copies = -(-WEIGHT_CACHES * cache // (inputs * outputs * int(stored.itemsize)))
    native = device.type == "cuda" or devices.cpu_multiplies_bfloat16()
    dtype = stored if stored.is_floating_point and native else torch.float32
    left = torch.randn(rows, inputs, device=device, dtype=dtype)
    weight = torch.randn(outputs, inputs, device=device, dtype=dtype)
    reached, medians = {}, {}
    with torch.inference_mode():
        for name, way in ways(device, dtype, stored).items():
            best, median = device_seconds([way(left, weight.clone()) for _ in range(copies)], device, scale)
            reached[name], medians[name] = (2 * rows * inputs * outputs / seconds for seconds in (best, median))
    fastest = max(reached, key=reached.__getitem__)
    return MatrixRate(rows, reached[fastest], fastest, reached, medians[fastest])


def measure_bandwidth(device: torch.device, scale: Scale) -> dict[str, float]:
    """Bytes per second of each way to move a large tensor; a copy counts the bytes read and the bytes written."""

    def best(call: Callable[[], object]) -> float:
        return device_seconds([call], device, scale).best

    columns = 2048
    cache = scale.cache or last_level_cache(device)
    size = max(BANDWIDTH_CACHES * cache, CUDA_LEAST if device.type == "cuda" else 0)
    rows = size // (4 * columns)
    source = torch.ones(rows, columns, device=device)
    target = torch.empty_like(source)
    vector = torch.ones(columns, device=device)
    with torch.inference_mode():
        return {
            "copy": 2 * source.nbytes / best(lambda: target.copy_(source)),
            "sum": source.nbytes / best(source.sum),
            "matrix times vector": source.nbytes / best(lambda: torch.mv(source, vector)),
        }


def last_level_cache(device: torch.device) -> int:
    """The size of the device's last cache in bytes; 64 MiB where the machine does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [_bytes(file.read_text().strip()) for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("*/size")]
    return max(sizes, default=UNKNOWN_CACHE)


def _bytes(text: str) -> int:
    """Bytes of a size such as "36608K"."""
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def ways(device: torch.device, dtype: torch.dtype, stored: torch.dtype) -> dict[str, Way]:
    """The ways to multiply by a weight matrix. Each takes rows [rows, inputs] and a weight [outputs, inputs] in
    `dtype`, packs the weight if it has to, and returns the product. One is the engine's own kernel, with weights in
    `stored`, the dtype in which the engine keeps them."""
    known: dict[str, Way] = {"linear": _linear, "mm": _mm}
    if device.type == "cpu":
        with contextlib.suppress(NoKernels):
            known["kernel"] = _kernel(kernels(user_cache()), dtype, stored)
    if device.type == "cpu" and torch.backends.mkldnn.is_available():
        known["mkldnn packed"] = _mkldnn
    if device.type == "cpu" and dtype == torch.float32 and torch.backends.mkl.is_available():
        known["mkl packed"] = _mkl
    return known


def _linear(rows: torch.Tensor, weight: torch.Tensor) -> Multiply:
    return lambda: linear(rows, weight)


def _mm(rows: torch.Tensor, weight: torch.Tensor) -> Multiply:
    transposed = weight.t().contiguous()
    return lambda: torch.mm(rows, transposed)


def _kernel(library: ctypes.CDLL, dtype: torch.dtype, stored: torch.dtype) -> Way:
    def way(rows: torch.Tensor, weight: torch.Tensor) -> Multiply:
        short = stored == torch.int8
        packer = Packer(library, stored if short else dtype, torch.get_num_threads())
        packed = packer.matrix(Linear(weight if short else weight.to(stored)))
        given = rows.to(torch.float32)
        product = torch.empty(len(rows), len(weight))

        def multiply() -> torch.Tensor:
            x, to = ctypes.c_void_p(given.data_ptr()), ctypes.c_void_p(product.data_ptr())
            library.orca_multiply(ctypes.byref(packed.struct()), x, len(given), packer.threads, to)
            return product

        return multiply

    return way


def _mkldnn(rows: torch.Tensor, weight: torch.Tensor) -> Multiply:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(rows))
    return lambda: torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")


def _mkl(rows: torch.Tensor, weight: torch.Tensor) -> Multiply:
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, len(rows))
    return lambda: torch.ops.mkl._mkl_linear(rows, packed, weight, None, len(rows))


def rates_table(rates: MachineRates, matrix: tuple[int, int]) -> str:
    """The rates that the floors are computed from, and what each way to multiply reached."""
    ways = list(rates.matrix[0].reached)
    rows = [
        [rate.rows, *(f"{value / 1e9:,.1f}" for value in (rate.operations, rate.median, *rate.reached.values()))]
        for rate in rates.matrix
    ]
    inputs, outputs = matrix
    return (
        f"Memory: {rates.bandwidth / 1e9:.1f} GB/s. GFLOP/s of products [rows, {inputs}] x [{inputs}, {outputs}]:\n\n"
        + table(["rows", "taken", "its median", *ways], rows)
    )
