"""What this machine reaches without the engine: its rate of reading as many bytes as the weights have, which may come
from memory or from the last cache, and its rate of matrix products by row count, with the libraries that torch has."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import torch
from torch.nn.functional import linear

from load.bench.timing import FULL, Scale, device_seconds
from load.report import table
from services.engine.backends.cpu.build import NoKernels, kernels
from services.engine.backends.cpu.packing import Packer
from services.engine.families.decoder_weights import Linear
from services.engine.startup import devices
from services.files import user_cache

SLICE = 16 << 20  # bytes
CUDA_LEAST = 1 << 30  # bytes: less is read before all of a large GPU has started
CUDA_MOST = 4 << 30  # bytes: more are read no faster, and the device must hold them several times
KERNEL = "engine's kernel"  # shown beside the others
PARTS = ", in parts"  # marks a way that was fastest with fewer rows

Multiply = Callable[[], torch.Tensor]
Way = Callable[[torch.Tensor, torch.Tensor], Multiply]


@dataclass(frozen=True, slots=True)
class MatrixRate:
    """The rate of matrix products with this many rows, in operations per second.

    `way` reached it in its best window; `reached` has the rate of each way, also that of the engine's own kernel, which
    is never taken.
    """

    rows: int
    operations: float
    way: str
    reached: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MachineRates:
    """`bandwidth` in bytes per second, over `read` bytes; `matrix` in order of growing row counts."""

    bandwidth: float
    matrix: tuple[MatrixRate, ...]
    read: int = 0

    @property
    def best(self) -> float:
        """The matrix rate at the best row count."""
        return max(rate.operations for rate in self.matrix)


def measure_rates(
    device: torch.device, stored: torch.dtype, inputs: int, outputs: int, weights: int, scale: Scale = FULL
) -> MachineRates:
    """The rates for products [rows, inputs] x [inputs, outputs] with weights stored in this dtype, `weights` bytes of
    them in the whole model."""
    bandwidth = max(measure_bandwidth(device, weights, scale).values())
    counts = scale.cuda_row_counts if device.type == "cuda" else scale.row_counts
    measured = (_matrix_rate(device, stored, inputs, outputs, weights, rows, scale) for rows in counts)
    return MachineRates(bandwidth, tuple(accumulate(measured, _at_least)), _read(device, weights))


def _at_least(fewer: MatrixRate, more: MatrixRate) -> MatrixRate:
    """More rows can be multiplied in parts of fewer rows, so they are at least as fast."""
    if more.operations >= fewer.operations:
        return more
    way = fewer.way.removesuffix(PARTS) + PARTS
    return MatrixRate(more.rows, fewer.operations, way, more.reached)


def _matrix_rate(
    device: torch.device, stored: torch.dtype, inputs: int, outputs: int, weights: int, rows: int, scale: Scale
) -> MatrixRate:
    """The best way of torch at this row count, with as many bytes of weights as the model has, taken in turn."""
    most = min(weights, CUDA_MOST) if device.type == "cuda" else weights
    copies = -(-most // (inputs * outputs * int(stored.itemsize)))
    native = device.type == "cuda" or devices.cpu_multiplies_bfloat16()
    dtype = stored if stored.is_floating_point and native else torch.float32
    left = torch.randn(rows, inputs, device=device, dtype=dtype)
    weight = torch.randn(outputs, inputs, device=device, dtype=dtype)
    reached = {}
    with torch.inference_mode():
        for name, way in ways(device, dtype, stored).items():
            seconds = device_seconds([way(left, weight.clone()) for _ in range(copies)], device, scale)
            reached[name] = 2 * rows * inputs * outputs / seconds
    fastest = max(reached.keys() - {KERNEL}, key=reached.__getitem__)
    return MatrixRate(rows, reached[fastest], fastest, reached)


def _read(device: torch.device, weights: int) -> int:
    """How many bytes to read: those of the weights, which an iteration reads one after the other; on CUDA a few GiB are
    as good."""
    return min(max(weights, CUDA_LEAST), CUDA_MOST) if device.type == "cuda" else weights


def measure_bandwidth(device: torch.device, weights: int, scale: Scale) -> dict[str, float]:
    """Bytes per second of each way to move a tensor with as many bytes as the weights; a copy counts the bytes read and
    the bytes written. On a CPU the tensor is moved in slices, one after the other, each in less than a window."""

    columns, size = 2048, _read(device, weights)
    count = 1 if device.type == "cuda" else -(-size // SLICE)
    rows = -(-size // (4 * columns * count))
    vector = torch.ones(columns, device=device)
    sources = torch.ones(count, rows, columns, device=device).unbind()
    targets = torch.empty(count, rows, columns, device=device).unbind()

    def rate(move: Callable[[torch.Tensor, torch.Tensor], object]) -> float:
        calls = [partial(move, *pair) for pair in zip(sources, targets, strict=True)]
        return sources[0].nbytes / device_seconds(calls, device, scale)

    with torch.inference_mode():
        return {
            "copy": 2 * rate(lambda source, target: target.copy_(source)),
            "sum": rate(lambda source, _: source.sum()),
            "matrix times vector": rate(lambda source, _: torch.mv(source, vector)),
        }


def ways(device: torch.device, dtype: torch.dtype, stored: torch.dtype) -> dict[str, Way]:
    """The ways to multiply by a weight matrix. Each takes rows [rows, inputs] and a weight [outputs, inputs] in
    `dtype`, packs the weight if it has to, and returns the product. One is the engine's own kernel, with weights in
    `stored`, the dtype in which the engine keeps them."""
    known: dict[str, Way] = {"linear": _linear, "mm": _mm}
    if device.type == "cpu":
        with contextlib.suppress(NoKernels):
            known[KERNEL] = _kernel(kernels(user_cache()), dtype, stored)
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
        [rate.rows, *(f"{value / 1e9:,.1f}" for value in (rate.operations, *rate.reached.values()))]
        for rate in rates.matrix
    ]
    inputs, outputs = matrix
    return (
        f"Memory: {rates.bandwidth / 1e9:.1f} GB/s over {rates.read / 1e6:,.0f} MB, the size of the weights. "
        f"GFLOP/s of products [rows, {inputs}] x [{inputs}, {outputs}]:\n\n" + table(["rows", "taken", *ways], rows)
    )
